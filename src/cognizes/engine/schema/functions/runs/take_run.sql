-- Gives a pending run to a worker: the next attempt begins. The caller holds the locks of the thread and the run.
CREATE OR REPLACE FUNCTION {schema}.take_run(
    p_thread_id uuid, p_run_id text, p_worker_id text, p_lease interval, p_event_id text
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_attempt integer;
BEGIN
    UPDATE {schema}.runs
       SET status = 'running', attempt = attempt + 1, worker_id = p_worker_id, available_at = NULL,
           lease_expires_at = clock_timestamp() + p_lease, started_at = coalesce(started_at, clock_timestamp())
     WHERE thread_id = p_thread_id AND id = p_run_id
    RETURNING attempt INTO v_attempt;
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, p_event_id, CASE WHEN v_attempt = 1 THEN 'run_started' ELSE 'run_resumed' END,
        json_build_object('run_id', p_run_id, 'status', 'running', 'attempt', v_attempt, 'worker_id', p_worker_id));
    RETURN v_attempt;
END
$$;
