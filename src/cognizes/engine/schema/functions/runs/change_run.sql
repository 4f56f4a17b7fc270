-- Moves a run to another status, with the event that says so. SQLSTATE CZ404: no such run; CZ422: an illegal move.
CREATE OR REPLACE FUNCTION {schema}.change_run(
    p_thread_id uuid, p_run_id text, p_status text, p_error text, p_event_id text, p_event_type text, p_content json,
    p_result json DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_status text;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT status INTO v_status FROM {schema}.runs WHERE thread_id = p_thread_id AND id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    IF NOT {schema}.run_transition_allowed(v_status, p_status) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; it cannot become %s', p_run_id, v_status, p_status);
    END IF;
    UPDATE {schema}.runs
       SET status = p_status, result = coalesce(p_result, result),
           -- Another try begins as if nothing had gone wrong.
           error = CASE WHEN v_status <> 'failed' AND p_status <> 'completed' THEN coalesce(p_error, error) END,
           failures = CASE WHEN v_status = 'failed' THEN 0 ELSE failures END,
           available_at = CASE WHEN p_status = 'pending' THEN available_at END,
           attempt = attempt + CASE WHEN p_status = 'running' THEN 1 ELSE 0 END,
           started_at = CASE WHEN p_status = 'running' THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
           completed_at = CASE WHEN p_status IN ('completed', 'failed', 'cancelled') THEN clock_timestamp() END,
           lease_expires_at = CASE WHEN p_status = 'running' THEN lease_expires_at END
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM {schema}.append_run_event(p_thread_id, p_run_id, p_event_id, p_event_type, p_content);
END
$$;
