-- Restore the state of a thread and the working memory of an agent from a snapshot, in one transaction with one event
-- whose id is that of the snapshot. Keys that p_variables lacks are deleted; messages stay.
-- Status:
--   applied   the state is p_variables, p_content is the content of the event
--   known     the snapshot was applied before; `content` is the content of that event
--   conflict  the state is not at p_expected_version (null: any); `version` is its version. Nothing changed
-- SQLSTATE CZ404: no such thread, or run; CZ423: p_attempt (null: not checked) does not hold the run.
CREATE OR REPLACE FUNCTION {schema}.apply_memory_snapshot(
    p_thread_id uuid, p_agent_id text, p_event_id text, p_content json, p_variables jsonb, p_working_memory jsonb,
    p_run_id text, p_attempt integer, p_max_state_bytes integer, p_expected_version bigint,
    OUT status text, OUT version bigint, OUT content text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_thread record;
    v_delta jsonb;
BEGIN
    PERFORM {schema}.check_fence(p_thread_id, p_run_id, p_attempt);
    SELECT * INTO v_thread FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    version := v_thread.version;
    SELECT 'known', e.content::text INTO status, content FROM {schema}.events e
     WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id);
    IF FOUND THEN
        RETURN;
    END IF;
    IF p_expected_version <> version THEN
        status := 'conflict';
        RETURN;
    END IF;
    SELECT jsonb_object_agg(key, value) INTO v_delta FROM (
        SELECT key, value FROM jsonb_each(p_variables) AS wanted WHERE v_thread.state -> key IS DISTINCT FROM value
        UNION ALL
        SELECT key, '{"$delete": true}'::jsonb FROM jsonb_object_keys(v_thread.state) AS present (key)
         WHERE NOT p_variables ? key
    ) changes;
    SELECT a.version INTO version FROM {schema}.append_event(
        p_thread_id, p_event_id, p_run_id, '', 'system', 'memory_restored', p_content,
        CASE WHEN v_delta IS NULL THEN '{}'::json ELSE json_build_object('state_delta', v_delta) END,
        v_delta, NULL, NULL, NULL, NULL, NULL, NULL, false, true, 0, p_max_state_bytes) a;
    INSERT INTO {schema}.agent_states (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
    VALUES (v_thread.app_name, v_thread.user_id, p_agent_id, v_thread.session_id, p_thread_id, p_working_memory,
            clock_timestamp())
    ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
       DO UPDATE SET payload = excluded.payload, thread_id = excluded.thread_id, updated_at = excluded.updated_at;
    status := 'applied';
    content := p_content::text;
END
$$;
