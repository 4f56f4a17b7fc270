-- Appends one event to one thread: checks the expected versions and the fence, takes the next sequence number, merges the three
-- deltas, inserts the event and its message. Returns a status instead of raising:
--   stored     the event is in the log
--   duplicate, conflict, fenced   see `check_append`. A stored event of this id is looked for only with p_may_be_resent or after
--              a conflict; else the unique index refuses it, and the caller sends the event again with p_may_be_resent.
--   missing    the thread does not exist
--   busy       without p_wait only: another transaction holds the thread's row lock
-- With p_notify the trigger `notify_event_insert` notifies, in this transaction. A caller that notifies after the commit, as the
-- engine does, passes false: NOTIFY holds a lock of the whole server until the commit is flushed and replicated. The setting
-- that the trigger looks at is local to the transaction and reset at once: a later INSERT of the same transaction notifies.
-- The fence (run id, attempt) is given by code that executes a run: it writes only while it holds the run.
-- p_usage is what a model used for the event, see `record_usage`: counted once, with the event.
-- `append_events` applies the same rules to a batch; one event alone takes two thirds of its time here.
CREATE OR REPLACE FUNCTION {schema}.append_event(
    p_thread_id uuid,
    p_event_id text,
    p_run_id text,
    p_invocation_id text,
    p_author text,
    p_event_type text,
    p_content json,
    p_actions json,
    p_delta jsonb DEFAULT NULL,
    p_user_delta jsonb DEFAULT NULL,
    p_app_delta jsonb DEFAULT NULL,
    p_expected_version bigint DEFAULT NULL,
    p_role text DEFAULT NULL,
    p_text text DEFAULT NULL,
    p_message_id text DEFAULT NULL,
    p_may_be_resent boolean DEFAULT false,
    p_wait boolean DEFAULT true,
    p_snapshot_every integer DEFAULT 0,
    p_max_state_bytes integer DEFAULT 0,
    p_expected_sequence bigint DEFAULT NULL,
    p_expected_user_version bigint DEFAULT NULL,
    p_expected_app_version bigint DEFAULT NULL,
    p_fence_run_id text DEFAULT NULL,
    p_fence_attempt integer DEFAULT NULL,
    p_notify boolean DEFAULT true,
    p_usage json DEFAULT NULL,
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
    v_refused record;
    v_changes_state boolean := p_delta IS NOT NULL OR p_user_delta IS NOT NULL OR p_app_delta IS NOT NULL;
BEGIN
    -- Sequence numbers are taken under this lock, and it is held until the commit: a reader never sees number N + 1 before
    -- number N. NO KEY: foreign keys to the thread do not wait for it.
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
    IF p_expected_version <> version OR p_may_be_resent OR p_fence_run_id IS NOT NULL
       OR p_expected_sequence < sequence_num OR p_expected_user_version IS NOT NULL OR p_expected_app_version IS NOT NULL
    THEN
        SELECT * INTO v_refused
          FROM {schema}.check_append(p_thread_id, p_event_id, v_app_name, v_user_id, version, sequence_num,
                                     p_may_be_resent, p_expected_version, p_expected_sequence, p_expected_user_version,
                                     p_expected_app_version, p_fence_run_id, p_fence_attempt, 0);
        IF v_refused.status IS NOT NULL THEN
            status := v_refused.status;
            sequence_num := v_refused.sequence_num;
            version := v_refused.version;
            created_at := v_refused.created_at;
            RETURN;
        END IF;
    END IF;

    sequence_num := sequence_num + 1;
    created_at := clock_timestamp();
    IF v_changes_state THEN
        version := version + 1;
    END IF;
    IF p_delta IS NOT NULL THEN
        IF v_is_as_created THEN
            PERFORM {schema}.snapshot_initial_states(ARRAY[p_thread_id]);
        END IF;
        UPDATE {schema}.threads t
           SET last_sequence = append_event.sequence_num, version = append_event.version, is_as_created = false,
               updated_at = append_event.created_at, state = {schema}.merge_state(t.state, p_delta)
         WHERE t.id = p_thread_id
        RETURNING pg_column_size(t.state) INTO v_size;
        PERFORM {schema}.refuse_large_state('session', v_size, p_max_state_bytes);
    ELSE
        -- Without the column a large state is neither read nor rewritten.
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

    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', 'off', true);
    END IF;
    INSERT INTO {schema}.events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at)
    VALUES (p_thread_id, append_event.sequence_num, p_event_id, v_app_name, p_run_id, p_invocation_id, p_author,
            p_event_type, p_content, p_actions, append_event.version, v_changes_state, append_event.created_at);
    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', '', true);
    END IF;
    IF p_role IS NOT NULL THEN
        INSERT INTO {schema}.messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
        VALUES (p_thread_id, append_event.sequence_num, p_message_id, p_event_id, v_app_name, p_role, p_text,
                append_event.created_at);
    END IF;
    IF p_usage IS NOT NULL THEN
        PERFORM {schema}.record_usage(p_thread_id, p_event_id, p_run_id, p_usage, append_event.created_at);
    END IF;
    IF p_snapshot_every > 0 AND sequence_num % p_snapshot_every = 0 THEN
        PERFORM {schema}.take_snapshot(p_thread_id);
    END IF;
    status := 'stored';
END
$$;
