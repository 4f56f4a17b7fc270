-- Creates a run, pending or running at once, with the event that says so. SQLSTATE CZ404: no such thread; CZ409: taken.
CREATE OR REPLACE FUNCTION {schema}.create_run(
    p_thread_id uuid, p_run_id text, p_status text, p_event_id text, p_event_type text, p_content json
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_app_name text;
BEGIN
    -- The thread before the run, here and everywhere: one order of locks.
    SELECT app_name INTO v_app_name FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    INSERT INTO {schema}.runs (thread_id, id, app_name, status, started_at)
    VALUES (p_thread_id, p_run_id, v_app_name, p_status, CASE WHEN p_status = 'running' THEN clock_timestamp() END)
    ON CONFLICT (thread_id, id) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s exists already; choose another id', p_run_id);
    END IF;
    PERFORM {schema}.append_run_event(p_thread_id, p_run_id, p_event_id, p_event_type, p_content);
END
$$;
