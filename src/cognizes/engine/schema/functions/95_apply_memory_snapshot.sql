-- Makes a thread's own state and an agent's working memory those of a snapshot, in one transaction with one event whose
-- id is the snapshot's: applied twice, the second time does nothing and returns false. Keys that the snapshot lacks go
-- away, so emptiness is restored too. Messages are the log's and stay, newer ones too. SQLSTATE CZ404: no such thread.
CREATE OR REPLACE FUNCTION {schema}.apply_memory_snapshot(
    p_thread_id uuid, p_agent_id text, p_event_id text, p_snapshot_id text, p_variables jsonb, p_working_memory jsonb,
    p_run_id text, p_max_state_bytes integer
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_thread record;
    v_delta jsonb;
    v_now timestamptz := clock_timestamp();
    v_appended record;
BEGIN
    SELECT * INTO v_thread FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    SELECT jsonb_object_agg(key, value) INTO v_delta FROM (
        SELECT key, value FROM jsonb_each(p_variables) AS wanted WHERE v_thread.state -> key IS DISTINCT FROM value
        UNION ALL
        SELECT key, '{"$delete": true}'::jsonb FROM jsonb_object_keys(v_thread.state) AS present (key)
         WHERE NOT p_variables ? key
    ) changes;
    SELECT * INTO v_appended FROM {schema}.append_event(
        p_thread_id, p_event_id, p_run_id, '', 'system', 'memory_restored',
        json_build_object('snapshot_id', p_snapshot_id, 'agent_id', p_agent_id),
        CASE WHEN v_delta IS NULL THEN '{}'::json ELSE json_build_object('state_delta', v_delta) END,
        v_delta, NULL, NULL, NULL, NULL, NULL, NULL, true, true, 0, p_max_state_bytes);
    IF v_appended.status <> 'stored' THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.agent_states (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
    VALUES (v_thread.app_name, v_thread.user_id, p_agent_id, v_thread.session_id, p_thread_id, p_working_memory, v_now)
    ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
       DO UPDATE SET payload = excluded.payload, thread_id = excluded.thread_id, updated_at = excluded.updated_at;
    RETURN true;
END
$$;
