-- Starts a run of a hosted agent in one transaction: creates its thread if there is none, begins the run leased to its worker,
-- and stores the events of its turn (the user's messages, the answers to questions). Returns the run with the state of the
-- thread. The row lock of the thread makes the checks and the writes one step: two servers cannot start runs on one thread
-- at once. Outcomes:
--   begun      `run` executes; runs of the handler that waited for a person have ended: completed when p_answered names
--              their questions, cancelled when the input withdraws them (p_withdraws)
--   busy       `run` executes on this thread, or a server of the handler continues it next: its lease expired, it was
--              handed over, or what it waited for has happened. A run of the handler that waits for something else than a
--              person is busy, too. Nothing changed
--   waiting    `run` of the handler waits for a person, and the input neither answers nor withdraws; nothing changed
--   withdrawn  the run that asked p_answered was cancelled; nothing changed
--   moved      the turn was read from another state of the thread: the thread is not p_thread_id, its head is not
--              p_expected_sequence (null: any), or with p_is_cached it has branches or hidden events. The head of a thread
--              with these is not compared: its last event may belong to another branch. Nothing changed
-- To a client, the answer starts another run: the result of the run that asked names it (`continued_by`), and its first
-- event names the run that asked (`continues`), whose signals the other run has. The client may send the id of the run that
-- asked; p_spare_id replaces an id that is taken then.
-- The same p_event_id again returns the run that it began. SQLSTATE CZ409: the id of the run or of an event is taken.
CREATE OR REPLACE FUNCTION {schema}.start_hosted_run(
    p_app_name text, p_user_id text, p_session_id text, p_thread_id uuid, p_new_thread_id uuid, p_new_state text,
    p_expected_sequence bigint, p_is_cached boolean,
    p_run_id text, p_spare_id text, p_handler text, p_input json, p_max_attempts integer,
    p_worker_id text, p_lease interval, p_event_id text, p_answered text[], p_withdraws boolean, p_traceparent text,
    p_event_ids text[], p_authors text[], p_event_types text[], p_contents text[], p_roles text[], p_texts text[],
    p_message_ids text[], p_snapshot_every integer, p_max_state_bytes integer
) RETURNS TABLE (
    outcome text, thread_id uuid, run {schema}.run_rows, begun_sequence bigint, is_branched boolean, state text,
    user_state text, app_state text, version bigint, last_sequence bigint, user_version bigint, app_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_thread_id uuid;
    v_sequence bigint;
    v_run_id text;
    v_waiting text;
    v_continued text;
    v_taken text;
    v_is_answered boolean := cardinality(p_answered) > 0;
    v_items integer := cardinality(p_event_ids);
BEGIN
    SELECT t.id, t.last_sequence INTO v_thread_id, v_sequence FROM {schema}.threads t
     WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
       AND t.session_id = p_session_id
       FOR NO KEY UPDATE;
    IF NOT FOUND AND p_thread_id IS NULL THEN
        PERFORM {schema}.create_sessions(
            ARRAY[p_new_thread_id], ARRAY[p_app_name], ARRAY[p_user_id], ARRAY[p_session_id], NULL, NULL,
            ARRAY[p_new_state], NULL, NULL, p_max_state_bytes);
        -- Another transaction may have created it first.
        SELECT t.id, t.last_sequence INTO v_thread_id, v_sequence FROM {schema}.threads t
         WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
           AND t.session_id = p_session_id
           FOR NO KEY UPDATE;
    END IF;
    thread_id := v_thread_id;
    is_branched := EXISTS (SELECT FROM {schema}.branch_segments s WHERE s.thread_id = v_thread_id)
                OR EXISTS (SELECT FROM {schema}.hidden_events h WHERE h.thread_id = v_thread_id);
    IF v_sequence > 0 THEN
        SELECT e.run_id, e.sequence_num INTO v_run_id, begun_sequence FROM {schema}.events e
         WHERE e.thread_id = v_thread_id AND md5(e.id) = md5(p_event_id) AND e.id = p_event_id;
    END IF;
    outcome := 'begun';
    IF v_run_id IS NULL THEN
        SELECT r.id INTO v_run_id FROM {schema}.runs r
         WHERE r.thread_id = v_thread_id
           AND (r.status = 'running' AND r.lease_expires_at > clock_timestamp()
                OR r.handler = p_handler AND r.lease_duration IS NOT NULL
                   AND (r.status IN ('running', 'pending') OR r.status = 'waiting' AND r.wait_kind <> 'human'))
         ORDER BY r.created_at, r.id
         LIMIT 1;
        IF FOUND THEN
            outcome := 'busy';
        ELSIF v_thread_id IS NULL OR v_thread_id <> coalesce(p_thread_id, p_new_thread_id)
              OR v_sequence <> p_expected_sequence AND NOT is_branched OR p_is_cached AND is_branched THEN
            outcome := 'moved';
        ELSE
            SELECT r.id INTO v_waiting FROM {schema}.runs r
             WHERE r.thread_id = v_thread_id AND r.status = 'waiting' AND r.handler = p_handler
               AND r.wait_kind = 'human'
             ORDER BY r.created_at, r.id
             LIMIT 1;
            IF v_waiting IS NOT NULL AND NOT v_is_answered AND NOT p_withdraws THEN
                outcome := 'waiting';
                v_run_id := v_waiting;
            ELSIF v_waiting IS NULL AND v_is_answered THEN
                SELECT r.id INTO v_run_id FROM {schema}.runs r
                 WHERE r.thread_id = v_thread_id AND r.status = 'cancelled' AND r.wait_kind = 'human'
                   AND string_to_array(r.wait_key, ',') && p_answered
                 LIMIT 1;
                IF FOUND THEN
                    outcome := 'withdrawn';
                END IF;
            END IF;
        END IF;
    END IF;
    IF v_run_id IS NULL AND outcome = 'begun' THEN
        v_run_id := p_run_id;
        IF v_is_answered AND EXISTS (SELECT FROM {schema}.runs r WHERE r.thread_id = v_thread_id AND r.id = p_run_id) THEN
            v_run_id := p_spare_id;
        END IF;
        IF v_waiting IS NOT NULL THEN
            FOR v_waiting IN
                SELECT r.id FROM {schema}.runs r
                 WHERE r.thread_id = v_thread_id AND r.status = 'waiting' AND r.handler = p_handler
                   AND r.wait_kind = 'human'
                 ORDER BY r.created_at, r.id
            LOOP
                PERFORM {schema}.end_runs(
                    ARRAY[v_thread_id], ARRAY[v_waiting], ARRAY[NULL]::integer[],
                    ARRAY[CASE WHEN v_is_answered THEN 'completed' ELSE 'cancelled' END],
                    ARRAY[CASE WHEN v_is_answered THEN json_build_object('continued_by', v_run_id)::text END],
                    ARRAY[NULL]::text[], ARRAY[gen_random_uuid()::text], ARRAY[NULL]::text[], true);
                v_continued := CASE WHEN v_is_answered THEN v_waiting END;
            END LOOP;
        END IF;
        PERFORM {schema}.create_run(
            v_thread_id, v_run_id, 'running', p_handler, p_input, p_max_attempts, NULL, p_worker_id, p_lease, p_event_id,
            json_strip_nulls(json_build_object(
                'run_id', v_run_id, 'status', 'running', 'handler', p_handler, 'continues', v_continued)),
            p_traceparent => p_traceparent);
        IF v_continued IS NOT NULL THEN
            -- An agent whose code waits is called from its beginning: the waits that have ended return at once.
            INSERT INTO {schema}.run_signals (
                thread_id, run_id, correlation_key, app_name, source, payload, created_at, used_at, may_answer, signal_id)
            SELECT s.thread_id, v_run_id, s.correlation_key, s.app_name, s.source, s.payload, s.created_at, s.used_at,
                   s.may_answer, s.signal_id
              FROM {schema}.run_signals s
             WHERE s.thread_id = v_thread_id AND s.run_id = v_continued;
        END IF;
        SELECT t.last_sequence INTO begun_sequence FROM {schema}.threads t WHERE t.id = v_thread_id;
        IF v_items > 0 THEN
            SELECT p_event_ids[stored.place] INTO v_taken
              FROM {schema}.append_events(
                       ARRAY[v_thread_id], array_fill(1, ARRAY[v_items]), p_event_ids,
                       array_fill(v_run_id, ARRAY[v_items]), array_fill(v_run_id, ARRAY[v_items]), p_authors,
                       p_event_types, p_contents, array_fill('{}'::text, ARRAY[v_items]), NULL, NULL, NULL, NULL, p_roles,
                       p_texts, p_message_ids, array_fill(true, ARRAY[v_items]), true, p_snapshot_every,
                       p_max_state_bytes)
                   WITH ORDINALITY AS stored (status, sequence_num, version, created_at, place)
             WHERE stored.status <> 'stored'
             LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format(
                    'the thread has an event %s already; give every message an id of its own', v_taken);
            END IF;
        END IF;
    END IF;
    SELECT r.* INTO run FROM {schema}.run_rows r WHERE r.thread_id = v_thread_id AND r.id = v_run_id;
    SELECT t.state::text, u.state::text, a.state::text, t.version, t.last_sequence, coalesce(u.version, 0),
           coalesce(a.version, 0)
      INTO state, user_state, app_state, version, last_sequence, user_version, app_version
      FROM {schema}.threads t
      LEFT JOIN {schema}.user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
      LEFT JOIN {schema}.app_states a ON a.app_name = t.app_name
     WHERE t.id = v_thread_id;
    RETURN NEXT;
END
$$;
