-- Store a signal for a run. p_may_answer lists the wait kinds that the sender may answer; null: all kinds. Answers:
--   resumed    the run was waiting for this key; it can be claimed
--   kept       the run does not wait yet; a later wait for this key uses the signal if its kind is one of p_may_answer
--   duplicate  an earlier signal of this key counts
-- The kind, the key and the right are checked under the lock of the run. A kept signal blocks no sender with more rights:
-- that sender's signal replaces it. The same p_signal_id again gets the same answer.
-- SQLSTATE CZ404: no such run; CZ403: the sender may not answer this kind of wait; CZ409: the run waits for another key,
-- its wait timed out, or it has ended. Nothing changed.
CREATE OR REPLACE FUNCTION {schema}.signal_run(
    p_thread_id uuid, p_run_id text, p_key text, p_payload json, p_may_answer text[], p_signal_id text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_known record;
BEGIN
    SELECT * INTO v_run FROM {schema}.lock_run(p_thread_id, p_run_id, NULL, NULL);
    SELECT source, may_answer, signal_id, used_at INTO v_known FROM {schema}.run_signals
     WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
    IF v_known.signal_id = p_signal_id THEN
        RETURN CASE WHEN v_known.used_at IS NULL THEN 'kept' ELSE 'resumed' END;
    ELSIF v_known.source = 'timeout' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('the signal %s comes too late: the wait of run %s timed out', p_key, p_run_id);
    ELSIF v_known.used_at IS NOT NULL
          -- A kept signal that left a wait for its own key open may not answer that wait.
          OR v_known.source IS NOT NULL AND NOT (v_run.status = 'waiting' AND v_run.wait_key = p_key)
             AND (v_known.may_answer IS NULL OR v_known.may_answer @> p_may_answer) THEN
        RETURN 'duplicate';
    END IF;
    IF v_run.status IN ('completed', 'failed', 'cancelled') THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s is %s and takes no signals', p_run_id, v_run.status);
    END IF;
    IF v_run.status = 'waiting' THEN
        IF NOT v_run.wait_kind = ANY (p_may_answer) THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ403',
                MESSAGE = format('run %s waits for a %s; the caller may only answer a wait of kind %s', p_run_id,
                                 v_run.wait_kind, array_to_string(p_may_answer, ' or '));
        END IF;
        IF v_run.wait_key <> p_key THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ409',
                MESSAGE = format('run %s does not wait for %s; send the correlation key of its wait', p_run_id, p_key);
        END IF;
        IF v_run.wait_expires_at <= clock_timestamp() THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ409',
                MESSAGE = format('the signal %s comes too late: the wait of run %s timed out', p_key, p_run_id);
        END IF;
        PERFORM {schema}.resolve_wait(p_thread_id, p_run_id, 'signal', p_payload, p_may_answer, p_signal_id);
        RETURN 'resumed';
    END IF;
    INSERT INTO {schema}.run_signals (
        thread_id, run_id, correlation_key, app_name, source, payload, may_answer, signal_id)
    VALUES (p_thread_id, p_run_id, p_key, v_run.app_name, 'signal', p_payload, p_may_answer, p_signal_id)
    ON CONFLICT (thread_id, run_id, md5(correlation_key)) DO UPDATE
       SET payload = excluded.payload, may_answer = excluded.may_answer, signal_id = excluded.signal_id;
    RETURN 'kept';
END
$$;
