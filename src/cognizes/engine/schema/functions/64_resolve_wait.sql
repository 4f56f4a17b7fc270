-- Ends a wait: what ended it is kept, and the run can be claimed. The caller holds the locks of the thread and the run.
CREATE OR REPLACE FUNCTION {schema}.resolve_wait(p_thread_id uuid, p_run_id text, p_source text, p_payload json)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    UPDATE {schema}.runs
       SET status = 'pending', available_at = NULL, failures = 0
     WHERE thread_id = p_thread_id AND id = p_run_id
    RETURNING app_name, wait_key INTO v_run;
    INSERT INTO {schema}.run_signals (thread_id, run_id, correlation_key, app_name, source, payload, used_at)
    VALUES (p_thread_id, p_run_id, v_run.wait_key, v_run.app_name, p_source, p_payload, clock_timestamp())
    ON CONFLICT (thread_id, run_id, md5(correlation_key)) DO UPDATE SET used_at = clock_timestamp();
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, gen_random_uuid()::text, 'run_signalled',
        json_build_object('run_id', p_run_id, 'status', 'pending', 'source', p_source,
                          'correlation_key', v_run.wait_key, 'payload', p_payload));
END
$$;
