-- `start_hosted_run` replaced it; servers of version 0.2.0 and earlier call it.
-- Begins a run of a hosted agent, leased to its worker, and returns it with the state of its thread. The row lock of the
-- thread makes the checks and the creation one step: two servers cannot begin runs on one thread at once. Outcomes:
--   begun      `run` executes; runs of the handler that waited for a person have ended: completed when p_answered names
--              their questions, cancelled when the input withdraws them (p_withdraws)
--   busy       `run` has a valid lease on this thread; nothing changed
--   waiting    `run` of the handler waits for a person, and the input neither answers nor withdraws; nothing changed
--   withdrawn  the run that asked p_answered was cancelled; nothing changed
-- To a client, the answer starts another run: the result of the run that asked names it (`continued_by`), and its first
-- event names the run that asked (`continues`). The client may send the id of the run that asked; p_spare_id replaces an
-- id that is taken then.
-- The same p_event_id again returns the run that it began. SQLSTATE CZ404: no such thread; CZ409: the id is taken.
CREATE OR REPLACE FUNCTION {schema}.begin_hosted_run(
    p_thread_id uuid, p_run_id text, p_spare_id text, p_handler text, p_input json, p_max_attempts integer,
    p_worker_id text, p_lease interval, p_event_id text, p_answered text[], p_withdraws boolean,
    p_traceparent text DEFAULT NULL
) RETURNS TABLE (
    outcome text, run {schema}.run_rows, state text, user_state text, app_state text, version bigint,
    last_sequence bigint, user_version bigint, app_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_thread record;
    v_run_id text;
    v_waiting text;
    v_continued text;
    v_is_answered boolean := cardinality(p_answered) > 0;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    outcome := 'begun';
    SELECT e.run_id INTO v_run_id FROM {schema}.events e
     WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id) AND e.id = p_event_id;
    IF v_run_id IS NULL THEN
        SELECT r.id INTO v_run_id FROM {schema}.runs r
         WHERE r.thread_id = p_thread_id AND r.status = 'running' AND r.lease_expires_at > clock_timestamp()
         ORDER BY r.created_at, r.id
         LIMIT 1;
        IF FOUND THEN
            outcome := 'busy';
        ELSIF v_is_answered THEN
            SELECT r.id INTO v_run_id FROM {schema}.runs r
             WHERE r.thread_id = p_thread_id AND r.status = 'cancelled' AND r.wait_kind = 'human'
               AND string_to_array(r.wait_key, ',') && p_answered
             LIMIT 1;
            IF FOUND THEN
                outcome := 'withdrawn';
            END IF;
        ELSIF NOT p_withdraws THEN
            SELECT r.id INTO v_run_id FROM {schema}.runs r
             WHERE r.thread_id = p_thread_id AND r.status = 'waiting' AND r.handler = p_handler
               AND r.wait_kind = 'human'
             ORDER BY r.created_at, r.id
             LIMIT 1;
            IF FOUND THEN
                outcome := 'waiting';
            END IF;
        END IF;
    END IF;
    IF v_run_id IS NULL THEN
        v_run_id := p_run_id;
        IF v_is_answered AND EXISTS (SELECT FROM {schema}.runs r WHERE r.thread_id = p_thread_id AND r.id = p_run_id) THEN
            v_run_id := p_spare_id;
        END IF;
        IF v_is_answered OR p_withdraws THEN
            FOR v_waiting IN
                SELECT r.id FROM {schema}.runs r
                 WHERE r.thread_id = p_thread_id AND r.status = 'waiting' AND r.handler = p_handler
                   AND r.wait_kind = 'human'
                 ORDER BY r.created_at, r.id
            LOOP
                PERFORM {schema}.end_runs(
                    ARRAY[p_thread_id], ARRAY[v_waiting], ARRAY[NULL]::integer[],
                    ARRAY[CASE WHEN v_is_answered THEN 'completed' ELSE 'cancelled' END],
                    ARRAY[CASE WHEN v_is_answered THEN json_build_object('continued_by', v_run_id)::text END],
                    ARRAY[NULL]::text[], ARRAY[gen_random_uuid()::text], ARRAY[NULL]::text[], true);
                v_continued := CASE WHEN v_is_answered THEN v_waiting END;
            END LOOP;
        END IF;
        PERFORM {schema}.create_run(
            p_thread_id, v_run_id, 'running', p_handler, p_input, p_max_attempts, NULL, p_worker_id, p_lease, p_event_id,
            json_strip_nulls(json_build_object(
                'run_id', v_run_id, 'status', 'running', 'handler', p_handler, 'continues', v_continued)),
            p_traceparent => p_traceparent);
    END IF;
    SELECT r.* INTO run FROM {schema}.run_rows r WHERE r.thread_id = p_thread_id AND r.id = v_run_id;
    SELECT t.state::text, u.state::text, a.state::text, t.version, t.last_sequence, coalesce(u.version, 0),
           coalesce(a.version, 0)
      INTO state, user_state, app_state, version, last_sequence, user_version, app_version
      FROM {schema}.threads t
      LEFT JOIN {schema}.user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
      LEFT JOIN {schema}.app_states a ON a.app_name = t.app_name
     WHERE t.id = p_thread_id;
    RETURN NEXT;
END
$$;
