-- End a wait: store the signal that ended it and make the run claimable. The caller holds the locks of the thread and
-- the run. A kept signal of the same key that may not answer this wait is replaced.
CREATE OR REPLACE FUNCTION {schema}.resolve_wait(
    p_thread_id uuid, p_run_id text, p_source text, p_payload json, p_may_answer text[] DEFAULT NULL,
    p_signal_id text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    UPDATE {schema}.runs
       SET status = 'pending', available_at = NULL, failures = 0
     WHERE thread_id = p_thread_id AND id = p_run_id
    RETURNING app_name, wait_key INTO v_run;
    INSERT INTO {schema}.run_signals (
        thread_id, run_id, correlation_key, app_name, source, payload, may_answer, signal_id, used_at)
    VALUES (p_thread_id, p_run_id, v_run.wait_key, v_run.app_name, p_source, p_payload, p_may_answer, p_signal_id,
            clock_timestamp())
    ON CONFLICT (thread_id, run_id, md5(correlation_key)) DO UPDATE
       SET source = excluded.source, payload = excluded.payload, may_answer = excluded.may_answer,
           signal_id = excluded.signal_id, used_at = excluded.used_at;
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, gen_random_uuid()::text, 'run_signalled',
        json_build_object('run_id', p_run_id, 'status', 'pending', 'source', p_source,
                          'correlation_key', v_run.wait_key, 'payload', p_payload));
END
$$;
