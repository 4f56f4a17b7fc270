-- Creates a run with everything a worker needs. One that is `running` at once is leased to its worker, as attempt 1.
CREATE OR REPLACE FUNCTION {schema}.enqueue_run(
    p_thread_id uuid, p_run_id text, p_status text, p_handler text, p_input json, p_max_attempts integer,
    p_available_at timestamptz, p_worker_id text, p_lease interval, p_event_id text, p_event_type text, p_content json
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.create_run(p_thread_id, p_run_id, p_status, p_event_id, p_event_type, p_content);
    UPDATE {schema}.runs
       SET handler = p_handler, input = p_input, max_attempts = p_max_attempts, available_at = p_available_at,
           worker_id = p_worker_id, lease_expires_at = clock_timestamp() + p_lease,
           attempt = CASE WHEN p_status = 'running' THEN 1 ELSE 0 END
     WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;
