-- Ends a run that an attempt holds: `completed` with a result, `failed` with an error, `cancelled`.
-- SQLSTATE CZ423: the attempt does not hold the run; CZ422: an illegal move.
CREATE OR REPLACE FUNCTION {schema}.end_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_status text, p_result json, p_error text, p_event_id text,
    p_event_type text, p_content json
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.check_fence(p_thread_id, p_run_id, p_attempt);
    PERFORM {schema}.change_run(p_thread_id, p_run_id, p_status, p_error, p_event_id, p_event_type, p_content);
    UPDATE {schema}.runs SET result = p_result WHERE thread_id = p_thread_id AND id = p_run_id AND p_result IS NOT NULL;
END
$$;
