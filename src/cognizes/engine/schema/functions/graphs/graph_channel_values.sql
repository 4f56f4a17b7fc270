-- The channel values of a checkpoint; one row, with nulls if it has none.
CREATE OR REPLACE FUNCTION {schema}.graph_channel_values(
    p_namespace_id bigint, p_channels text[], p_versions text[],
    OUT channels text[], OUT types text[], OUT "values" bytea[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(v.channel), array_agg(v.type), array_agg(v.value)
      FROM unnest(p_channels, p_versions) AS wanted (channel, version)
      JOIN {schema}.graph_channels v
        ON v.namespace_id = p_namespace_id AND md5(v.channel) = md5(wanted.channel) AND v.version = wanted.version
       AND v.channel = wanted.channel
$$;

-- The writes after a checkpoint, in the order in which LangGraph applies them; one row, with nulls if there are none.
CREATE OR REPLACE FUNCTION {schema}.graph_pending_writes(
    p_namespace_id bigint, p_checkpoint_id text,
    OUT task_ids text[], OUT channels text[], OUT types text[], OUT "values" bytea[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(w.task_id), array_agg(w.channel), array_agg(w.type), array_agg(w.value)
      FROM (SELECT * FROM {schema}.graph_writes
             WHERE namespace_id = p_namespace_id AND checkpoint_id = p_checkpoint_id
             ORDER BY task_path, task_id, position) w
$$;
