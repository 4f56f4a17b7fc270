-- End runs, each with its event: `completed` with a result, `failed` with an error, or `cancelled`. Every run ends here.
-- p_attempts are the attempts that end their runs; null: the caller executes none. A null in p_contents stands for an event
-- of id, status and error. An item that cannot be ended stops no other. Item i is answered with place i and an outcome:
--   ended    `run` is the run after its end
--   fenced   the attempt does not hold the run; nothing changed; `run` is the run as it is
--   illegal  the run cannot become this status (`run_transition_allowed`); nothing changed; `run` is the run as it is
--   missing  there is no such run
--   busy     without p_wait only: another transaction holds the run or its thread. A batch never waits for one of its
--            items: two batches that wait while they hold locks could wait for each other
CREATE OR REPLACE FUNCTION {schema}.end_runs(
    p_thread_ids uuid[], p_run_ids text[], p_attempts integer[], p_statuses text[], p_results text[], p_errors text[],
    p_event_ids text[], p_contents text[], p_wait boolean
) RETURNS TABLE (place integer, outcome text, run {schema}.run_rows) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run record;
BEGIN
    FOR place IN SELECT n FROM generate_subscripts(p_run_ids, 1) AS n ORDER BY p_thread_ids[n], p_run_ids[n] LOOP
        IF p_wait THEN
            PERFORM FROM {schema}.threads WHERE id = p_thread_ids[place] FOR NO KEY UPDATE;
            PERFORM FROM {schema}.runs WHERE thread_id = p_thread_ids[place] AND id = p_run_ids[place] FOR UPDATE;
        END IF;
        PERFORM FROM {schema}.threads WHERE id = p_thread_ids[place] FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            SELECT r.status, r.attempt INTO v_run FROM {schema}.runs r
             WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place] FOR UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            outcome := CASE WHEN EXISTS (SELECT FROM {schema}.runs r
                                          WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place])
                            THEN 'busy' ELSE 'missing' END;
        ELSIF p_attempts[place] IS NOT NULL AND (v_run.status <> 'running' OR v_run.attempt <> p_attempts[place]) THEN
            outcome := 'fenced';
        ELSIF NOT {schema}.run_transition_allowed(v_run.status, p_statuses[place]) THEN
            outcome := 'illegal';
        ELSE
            outcome := 'ended';
            UPDATE {schema}.runs r
               SET status = p_statuses[place], result = coalesce(p_results[place]::json, r.result),
                   error = CASE WHEN p_statuses[place] <> 'completed' THEN coalesce(p_errors[place], r.error) END,
                   completed_at = clock_timestamp(), available_at = NULL, lease_expires_at = NULL
             WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place];
            PERFORM {schema}.append_run_event(
                p_thread_ids[place], p_run_ids[place], p_event_ids[place],
                CASE p_statuses[place] WHEN 'completed' THEN 'run_finished' ELSE 'run_' || p_statuses[place] END,
                coalesce(p_contents[place]::json, json_build_object(
                    'run_id', p_run_ids[place], 'status', p_statuses[place], 'error', p_errors[place])));
        END IF;
        SELECT r.* INTO run FROM {schema}.run_rows r
         WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place] AND outcome <> 'busy';
        RETURN NEXT;
    END LOOP;
END
$$;
