-- Takes a signal for a run. Answers:
--   resumed    it was waiting for this key; it can be claimed
--   kept       it does not wait yet: the signal is there when it will
--   duplicate  a signal of this key came before; that one counts
-- SQLSTATE CZ404: no such run; CZ409: it waits for another key, its wait timed out, or it has ended. Nothing changed.
CREATE OR REPLACE FUNCTION {schema}.signal_run(p_thread_id uuid, p_run_id text, p_key text, p_payload json)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_source text;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT app_name, status, wait_key, wait_expires_at INTO v_run
      FROM {schema}.runs WHERE thread_id = p_thread_id AND id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    SELECT source INTO v_source FROM {schema}.run_signals
     WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
    IF v_source = 'timeout' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('the signal %s comes too late: run %s waited for it until its time was over', p_key, p_run_id);
    ELSIF v_source IS NOT NULL THEN
        RETURN 'duplicate';
    END IF;
    IF v_run.status IN ('completed', 'failed', 'cancelled') THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s is %s and takes no signals', p_run_id, v_run.status);
    END IF;
    IF v_run.status = 'waiting' THEN
        IF v_run.wait_key <> p_key THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ409',
                MESSAGE = format('run %s does not wait for %s; send the correlation key of its wait', p_run_id, p_key);
        END IF;
        IF v_run.wait_expires_at <= clock_timestamp() THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ409',
                MESSAGE = format('the signal %s comes too late: the wait of run %s is over', p_key, p_run_id);
        END IF;
        PERFORM {schema}.resolve_wait(p_thread_id, p_run_id, 'signal', p_payload);
        RETURN 'resumed';
    END IF;
    INSERT INTO {schema}.run_signals (thread_id, run_id, correlation_key, app_name, source, payload)
    VALUES (p_thread_id, p_run_id, p_key, v_run.app_name, 'signal', p_payload);
    RETURN 'kept';
END
$$;
