-- Copy the checkpoints, channel values and writes of a thread to another thread id. What the target has stays.
CREATE OR REPLACE FUNCTION {schema}.copy_graph_thread(p_app_name text, p_source text, p_target text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_source record;
    v_target bigint;
BEGIN
    FOR v_source IN
        SELECT id, checkpoint_ns FROM {schema}.graph_namespaces
         WHERE md5(thread_id) = md5(p_source) AND app_name = p_app_name AND thread_id = p_source
         ORDER BY id
           FOR KEY SHARE
    LOOP
        v_target := {schema}.open_graph_namespace(p_app_name, p_target, v_source.checkpoint_ns);
        INSERT INTO {schema}.graph_channels (namespace_id, channel, version, app_name, type, value)
        SELECT v_target, channel, version, app_name, type, value
          FROM {schema}.graph_channels WHERE namespace_id = v_source.id
        ON CONFLICT (namespace_id, md5(channel), version) DO NOTHING;
        INSERT INTO {schema}.graph_checkpoints (
            namespace_id, checkpoint_id, parent_id, app_name, run_id, type, checkpoint, metadata, channels, versions,
            inlined, written_by, created_at)
        SELECT v_target, checkpoint_id, parent_id, app_name, run_id, type, checkpoint, metadata, channels, versions,
               inlined, written_by, created_at
          FROM {schema}.graph_checkpoints WHERE namespace_id = v_source.id
        ON CONFLICT (namespace_id, checkpoint_id) DO NOTHING;
        INSERT INTO {schema}.graph_writes (
            namespace_id, checkpoint_id, task_id, position, task_path, app_name, channel, type, value)
        SELECT v_target, checkpoint_id, task_id, position, task_path, app_name, channel, type, value
          FROM {schema}.graph_writes WHERE namespace_id = v_source.id
        ON CONFLICT (namespace_id, checkpoint_id, task_id, position) DO NOTHING;
    END LOOP;
END
$$;
