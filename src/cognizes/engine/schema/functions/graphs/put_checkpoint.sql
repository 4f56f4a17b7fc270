-- Store a checkpoint and the channel values that are new in it; replace a checkpoint with the same id. With an attempt,
-- the run must be held by it (see check_fence).
CREATE OR REPLACE FUNCTION {schema}.put_checkpoint(
    p_app_name text, p_thread_id text, p_checkpoint_ns text, p_checkpoint_id text, p_parent_id text, p_run_id text,
    p_type text, p_checkpoint bytea, p_metadata jsonb, p_channels text[], p_versions text[], p_inlined text[],
    p_written_by text, p_new_channels text[], p_new_versions text[], p_new_types text[], p_new_values bytea[],
    p_fence_thread_id uuid, p_fence_run_id text, p_fence_attempt integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_namespace_id bigint;
BEGIN
    PERFORM {schema}.check_fence(p_fence_thread_id, p_fence_run_id, p_fence_attempt);
    v_namespace_id := {schema}.open_graph_namespace(p_app_name, p_thread_id, p_checkpoint_ns);
    IF p_new_channels <> '{}' THEN
        INSERT INTO {schema}.graph_channels (namespace_id, channel, version, app_name, type, value)
        SELECT v_namespace_id, new.channel, new.version, p_app_name, new.type, new.value
          FROM unnest(p_new_channels, p_new_versions, p_new_types, p_new_values) AS new (channel, version, type, value)
         ORDER BY new.channel
        ON CONFLICT (namespace_id, md5(channel), version) DO NOTHING;
    END IF;
    INSERT INTO {schema}.graph_checkpoints (
        namespace_id, checkpoint_id, parent_id, app_name, run_id, type, checkpoint, metadata, channels, versions,
        inlined, written_by)
    VALUES (v_namespace_id, p_checkpoint_id, p_parent_id, p_app_name, p_run_id, p_type, p_checkpoint, p_metadata,
            p_channels, p_versions, p_inlined, p_written_by)
    ON CONFLICT (namespace_id, checkpoint_id) DO UPDATE
       SET parent_id = excluded.parent_id, run_id = excluded.run_id, type = excluded.type,
           checkpoint = excluded.checkpoint, metadata = excluded.metadata, channels = excluded.channels,
           versions = excluded.versions, inlined = excluded.inlined, written_by = excluded.written_by;
END
$$;
