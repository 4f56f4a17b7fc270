-- Appends one event to one thread: checks the expected version, takes the next sequence number, merges the three
-- deltas, writes the event and its message. Answers with a status instead of raising, so that in a batch one
-- conflict fails nobody else:
--   stored     the event is in the log
--   duplicate  an event of this id is there already; the caller compares the contents. It is looked for first only
--              with p_may_be_resent; without, it is found when the event is in conflict (its sender lost the answer and
--              does not know the version it has made), and else the unique index refuses it: then ask with p_may_be_resent
--   conflict   the thread's version, or that of a wider scope, is not the expected one, or the conversation went on after the expected
--              sequence number (events about runs do not count); `version` says what it is
--   missing    there is no such thread
--   busy       without p_wait only: somebody else holds the thread now
CREATE OR REPLACE FUNCTION {schema}.append_event(
    p_thread_id uuid,
    p_event_id text,
    p_run_id text,
    p_invocation_id text,
    p_author text,
    p_event_type text,
    p_content json,
    p_actions json,
    p_delta jsonb,
    p_user_delta jsonb,
    p_app_delta jsonb,
    p_expected_version bigint,
    p_role text,
    p_text text,
    p_message_id text,
    p_may_be_resent boolean,
    p_wait boolean,
    p_snapshot_every integer,
    p_max_state_bytes integer,
    p_expected_sequence bigint DEFAULT NULL,
    p_expected_user_version bigint DEFAULT NULL,
    p_expected_app_version bigint DEFAULT NULL,
    OUT status text,
    OUT sequence_num bigint,
    OUT version bigint,
    OUT created_at timestamptz
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_app_name text;
    v_user_id text;
    v_size integer;
    v_is_as_created boolean;
    v_stored record;
    v_changes_state boolean := p_delta IS NOT NULL OR p_user_delta IS NOT NULL OR p_app_delta IS NOT NULL;
    v_in_conflict boolean := false;
BEGIN
    -- The lock that makes the order a promise: numbers are handed out while it is held and it is held until commit,
    -- so a reader never sees number N + 1 before number N. NO KEY: foreign keys to the thread need not wait for us.
    IF p_wait THEN
        PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    END IF;
    SELECT t.version, t.last_sequence, t.app_name, t.user_id, t.is_as_created
      INTO version, sequence_num, v_app_name, v_user_id, v_is_as_created
      FROM {schema}.threads t WHERE t.id = p_thread_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        status := CASE WHEN EXISTS (SELECT FROM {schema}.threads WHERE id = p_thread_id)
                       THEN 'busy' ELSE 'missing' END;
        RETURN;
    END IF;

    IF p_user_delta IS NOT NULL OR p_app_delta IS NOT NULL THEN
        PERFORM {schema}.lock_scopes(ARRAY[1], ARRAY[v_app_name], ARRAY[v_user_id], ARRAY[p_user_delta::text],
                                     ARRAY[p_app_delta::text]);
    END IF;
    IF p_expected_version <> version
       OR coalesce(p_expected_user_version, p_expected_app_version) IS NOT NULL AND {schema}.scopes_changed(
              v_app_name, v_user_id, p_expected_user_version, p_expected_app_version)
       OR p_expected_sequence IS NOT NULL AND p_expected_sequence < sequence_num
          AND {schema}.has_conversation_after(p_thread_id, p_expected_sequence) THEN
        v_in_conflict := true;
    END IF;
    IF v_in_conflict OR p_may_be_resent THEN
        SELECT e.sequence_num, e.version, e.created_at INTO v_stored
          FROM {schema}.events e
         WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id);
        IF FOUND THEN
            status := 'duplicate';
            sequence_num := v_stored.sequence_num;
            version := v_stored.version;
            created_at := v_stored.created_at;
            RETURN;
        END IF;
    END IF;
    IF v_in_conflict THEN
        status := 'conflict';
        RETURN;
    END IF;

    sequence_num := sequence_num + 1;
    created_at := clock_timestamp();
    IF v_changes_state THEN
        version := version + 1;
    END IF;
    IF p_delta IS NOT NULL THEN
        IF v_is_as_created THEN
            PERFORM {schema}.keep_first_states(ARRAY[p_thread_id]);
        END IF;
        UPDATE {schema}.threads t
           SET last_sequence = append_event.sequence_num, version = append_event.version, is_as_created = false,
               updated_at = append_event.created_at, state = {schema}.merge_state(t.state, p_delta)
         WHERE t.id = p_thread_id
        RETURNING pg_column_size(t.state) INTO v_size;
        PERFORM {schema}.refuse_large_state('session', v_size, p_max_state_bytes);
    ELSE
        -- The state is not named, so a large one is neither read nor rewritten.
        UPDATE {schema}.threads t
           SET last_sequence = append_event.sequence_num, version = append_event.version,
               updated_at = append_event.created_at
         WHERE t.id = p_thread_id;
    END IF;
    IF p_user_delta IS NOT NULL THEN
        PERFORM {schema}.merge_user_state(
            v_app_name, v_user_id, p_user_delta, p_thread_id, sequence_num, created_at, p_max_state_bytes);
    END IF;
    IF p_app_delta IS NOT NULL THEN
        PERFORM {schema}.merge_app_state(
            v_app_name, p_app_delta, p_thread_id, sequence_num, created_at, p_max_state_bytes);
    END IF;

    INSERT INTO {schema}.events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at)
    VALUES (p_thread_id, append_event.sequence_num, p_event_id, v_app_name, p_run_id, p_invocation_id, p_author,
            p_event_type, p_content, p_actions, append_event.version, v_changes_state, append_event.created_at);
    IF p_role IS NOT NULL THEN
        INSERT INTO {schema}.messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
        VALUES (p_thread_id, append_event.sequence_num, p_message_id, p_event_id, v_app_name, p_role, p_text,
                append_event.created_at);
    END IF;
    IF p_snapshot_every > 0 AND sequence_num % p_snapshot_every = 0 THEN
        PERFORM {schema}.take_snapshot(p_thread_id);
    END IF;
    status := 'stored';
END
$$;
