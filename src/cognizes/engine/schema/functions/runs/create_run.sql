-- Create a run with its event. A `running` one is attempt 1, leased to its worker. SQLSTATE CZ404: no such thread;
-- CZ409: the id is taken.
CREATE OR REPLACE FUNCTION {schema}.create_run(
    p_thread_id uuid, p_run_id text, p_status text, p_handler text, p_input json, p_max_attempts integer,
    p_available_at timestamptz, p_worker_id text, p_lease interval, p_event_id text, p_content json,
    p_queue text DEFAULT '', p_priority integer DEFAULT 0, p_traceparent text DEFAULT NULL
) RETURNS SETOF {schema}.run_rows LANGUAGE plpgsql AS $$
DECLARE
    v_app_name text;
    v_is_running boolean := p_status = 'running';
BEGIN
    SELECT app_name INTO v_app_name FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    INSERT INTO {schema}.runs (
        thread_id, id, app_name, status, handler, input, max_attempts, available_at, started_at, attempt, worker_id,
        lease_duration, lease_expires_at, queue, priority, traceparent)
    VALUES (
        p_thread_id, p_run_id, v_app_name, p_status, p_handler, p_input, p_max_attempts, p_available_at,
        CASE WHEN v_is_running THEN clock_timestamp() END, v_is_running::integer,
        CASE WHEN v_is_running THEN p_worker_id END, CASE WHEN v_is_running THEN p_lease END,
        CASE WHEN v_is_running THEN clock_timestamp() + p_lease END, p_queue, p_priority,
        p_traceparent)
    ON CONFLICT (thread_id, id) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s exists already; choose another id', p_run_id);
    END IF;
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, p_event_id, CASE WHEN v_is_running THEN 'run_started' ELSE 'run_created' END, p_content);
    RETURN QUERY SELECT * FROM {schema}.run_rows WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;
