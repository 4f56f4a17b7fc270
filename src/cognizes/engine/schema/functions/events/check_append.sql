-- Returns why an event cannot be appended to a thread; a null status if it can. `append_event` and `append_events` call it when a
-- condition was given that their own comparison does not settle. The caller holds the thread's row lock, so the answer holds
-- until the commit.
--   fenced     the run of the fence is not executed by that attempt
--   duplicate  an event of this id exists; the caller compares the contents
--   conflict   the version of the thread or of a wider scope is not the expected one, or an event of the conversation follows the
--              expected sequence number (events about runs do not count). A sender that lost an answer does not know the version
--              that its event made, so a duplicate takes precedence.
-- p_appended is the sequence number of the last event of the conversation that the caller's batch appends to the thread.
CREATE OR REPLACE FUNCTION {schema}.check_append(
    p_thread_id uuid,
    p_event_id text,
    p_app_name text,
    p_user_id text,
    p_version bigint,
    p_sequence bigint,
    p_may_be_resent boolean,
    p_expected_version bigint,
    p_expected_sequence bigint,
    p_expected_user_version bigint,
    p_expected_app_version bigint,
    p_fence_run_id text,
    p_fence_attempt integer,
    p_appended bigint,
    OUT status text,
    OUT sequence_num bigint,
    OUT version bigint,
    OUT created_at timestamptz
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_in_conflict boolean := coalesce(p_expected_version <> p_version, false);
BEGIN
    IF p_fence_run_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM {schema}.runs r
         WHERE r.thread_id = p_thread_id AND r.id = p_fence_run_id AND r.status = 'running'
           AND r.attempt = p_fence_attempt
    ) THEN
        status := 'fenced';
        RETURN;
    END IF;
    v_in_conflict := v_in_conflict
        OR coalesce(p_expected_user_version, p_expected_app_version) IS NOT NULL AND {schema}.scopes_changed(
               p_app_name, p_user_id, p_expected_user_version, p_expected_app_version)
        OR p_expected_sequence IS NOT NULL AND p_expected_sequence < p_sequence
           AND (p_expected_sequence < p_appended
                OR {schema}.has_conversation_after(p_thread_id, p_expected_sequence));
    IF v_in_conflict OR p_may_be_resent THEN
        SELECT 'duplicate', e.sequence_num, e.version, e.created_at INTO status, sequence_num, version, created_at
          FROM {schema}.events e
         WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id);
    END IF;
    IF v_in_conflict AND status IS NULL THEN
        status := 'conflict';
        sequence_num := p_sequence;
        version := p_version;
    END IF;
END
$$;
