-- Make a running run wait, with its event. Answers:
--   waiting   it waits and has no lease
--   resolved  a kept signal ends the wait; with p_suspend the run is pending again, else it stays running. A kept signal
--             ends only a wait of a kind that its sender may answer
-- A wait for a message is answered by what the user says after the run's own last message, else after its beginning.
-- SQLSTATE CZ404, CZ423: the attempt does not hold the run; CZ409: this key has ended a wait of the run before.
CREATE OR REPLACE FUNCTION {schema}.wait_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_kind text, p_key text, p_reason text,
    p_expires_at timestamptz, p_timeout_node text, p_context json, p_suspend boolean, p_event_id text, p_content json
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_early record;
    v_after bigint;
BEGIN
    PERFORM {schema}.lock_run(p_thread_id, p_run_id, p_attempt, 'waiting');
    SELECT source, payload, may_answer, signal_id, used_at,
           may_answer IS NULL OR p_kind = ANY (may_answer) AS is_usable
      INTO v_early FROM {schema}.run_signals
     WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
    IF v_early.is_usable AND NOT p_suspend THEN
        UPDATE {schema}.run_signals SET used_at = coalesce(used_at, clock_timestamp())
         WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
        RETURN 'resolved';
    END IF;
    IF v_early.used_at IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s has waited for %s before; give every wait a key of its own', p_run_id, p_key);
    END IF;
    IF p_kind = 'message' THEN
        SELECT greatest(max(sequence_num) FILTER (WHERE event_type IN ('assistant_message', 'message')),
                        min(sequence_num),
                        max((SELECT max((s.payload ->> 'sequence_num')::bigint) FROM {schema}.run_signals s
                              WHERE s.thread_id = p_thread_id AND s.run_id = p_run_id AND s.source = 'message')))
          INTO v_after
          FROM {schema}.events e WHERE e.run_id = p_run_id AND e.thread_id = p_thread_id;
    END IF;
    UPDATE {schema}.runs
       SET status = 'waiting', available_at = NULL, lease_expires_at = NULL, wait_kind = p_kind, wait_key = p_key,
           waiting_since = clock_timestamp(), wait_reason = p_reason, wait_expires_at = p_expires_at, wait_timeout_node = p_timeout_node, wait_after = v_after,
           resumption_context = p_context, failures = 0
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM {schema}.append_run_event(p_thread_id, p_run_id, p_event_id, 'run_waiting', p_content);
    IF v_early.is_usable THEN
        PERFORM {schema}.resolve_wait(
            p_thread_id, p_run_id, v_early.source, v_early.payload, v_early.may_answer, v_early.signal_id);
        RETURN 'resolved';
    END IF;
    RETURN 'waiting';
END
$$;
