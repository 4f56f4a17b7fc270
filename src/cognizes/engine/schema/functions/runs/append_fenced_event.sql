-- `append_event` for somebody who executes a run: one more answer, `fenced`, when the attempt does not hold the run any
-- more. Nothing was stored then.
CREATE OR REPLACE FUNCTION {schema}.append_fenced_event(
    p_fence_run_id text,
    p_fence_attempt integer,
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
    p_expected_sequence bigint,
    p_expected_user_version bigint,
    p_expected_app_version bigint,
    OUT status text,
    OUT sequence_num bigint,
    OUT version bigint,
    OUT created_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF p_wait THEN
        PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    ELSE
        PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        status := CASE WHEN EXISTS (SELECT FROM {schema}.threads WHERE id = p_thread_id)
                       THEN 'busy' ELSE 'missing' END;
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.runs r WHERE r.thread_id = p_thread_id AND r.id = p_fence_run_id
                      AND r.status = 'running' AND r.attempt = p_fence_attempt) THEN
        status := 'fenced';
        RETURN;
    END IF;
    SELECT a.status, a.sequence_num, a.version, a.created_at INTO status, sequence_num, version, created_at
      FROM {schema}.append_event(
               p_thread_id, p_event_id, p_run_id, p_invocation_id, p_author, p_event_type, p_content, p_actions, p_delta,
               p_user_delta, p_app_delta, p_expected_version, p_role, p_text, p_message_id, p_may_be_resent, p_wait,
               p_snapshot_every, p_max_state_bytes, p_expected_sequence, p_expected_user_version,
               p_expected_app_version) a;
END
$$;
