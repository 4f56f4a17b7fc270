-- What LangGraph rebuilds delta channels of a checkpoint from: for each channel, the ancestors back to the nearest one with a
-- value of it, newest first. `is_seed` marks that one; its value is `type` and `value`, or in the document if it is
-- inlined. The other columns are the writes to the channel after an ancestor, null where it has none.
CREATE OR REPLACE FUNCTION {schema}.graph_channel_history(
    p_app_name text, p_thread_id text, p_checkpoint_ns text, p_checkpoint_id text, p_channels text[]
) RETURNS TABLE (
    channel text, depth integer, checkpoint_id text, is_seed boolean, type text, value bytea, document_type text,
    document bytea, written_by text, task_ids text[], write_types text[], write_values bytea[]
) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE target AS (
        SELECT c.namespace_id, c.parent_id
          FROM {schema}.graph_namespaces n
          JOIN {schema}.graph_checkpoints c ON c.namespace_id = n.id
         WHERE md5(n.thread_id) = md5(p_thread_id) AND n.app_name = p_app_name
           AND md5(n.checkpoint_ns) = md5(p_checkpoint_ns) AND n.thread_id = p_thread_id
           AND n.checkpoint_ns = p_checkpoint_ns
           AND (p_checkpoint_id IS NULL OR c.checkpoint_id = p_checkpoint_id)
         ORDER BY c.checkpoint_id DESC
         LIMIT 1
    ), walk AS (
        SELECT 1 AS depth, c.namespace_id, c.checkpoint_id, c.parent_id, p_channels AS wanted,
               ARRAY(SELECT unnest(p_channels) EXCEPT SELECT unnest(c.channels || c.inlined)) AS remaining
          FROM target t
          JOIN {schema}.graph_checkpoints c ON c.namespace_id = t.namespace_id AND c.checkpoint_id = t.parent_id
        UNION ALL
        SELECT w.depth + 1, c.namespace_id, c.checkpoint_id, c.parent_id, w.remaining,
               ARRAY(SELECT unnest(w.remaining) EXCEPT SELECT unnest(c.channels || c.inlined))
          FROM walk w
          JOIN {schema}.graph_checkpoints c ON c.namespace_id = w.namespace_id AND c.checkpoint_id = w.parent_id
         WHERE w.remaining <> '{}'
    )
    SELECT wanted.channel, w.depth, w.checkpoint_id, wanted.channel <> ALL (w.remaining), stored.type, stored.value,
           c.type, CASE WHEN wanted.channel = ANY (c.inlined) THEN c.checkpoint END, c.written_by,
           writes.task_ids, writes.types, writes.values
      FROM walk w
     CROSS JOIN LATERAL unnest(w.wanted) AS wanted (channel)
      JOIN {schema}.graph_checkpoints c ON c.namespace_id = w.namespace_id AND c.checkpoint_id = w.checkpoint_id
      LEFT JOIN {schema}.graph_channels stored
        ON wanted.channel <> ALL (w.remaining) AND stored.namespace_id = w.namespace_id
       AND md5(stored.channel) = md5(wanted.channel) AND stored.channel = wanted.channel
       AND stored.version = c.versions[array_position(c.channels, wanted.channel)]
     CROSS JOIN LATERAL (
           SELECT array_agg(g.task_id ORDER BY g.task_path, g.task_id, g.position) AS task_ids,
                  array_agg(g.type ORDER BY g.task_path, g.task_id, g.position) AS types,
                  array_agg(g.value ORDER BY g.task_path, g.task_id, g.position) AS values
             FROM {schema}.graph_writes g
            WHERE g.namespace_id = w.namespace_id AND g.checkpoint_id = w.checkpoint_id AND g.channel = wanted.channel
           ) writes
     ORDER BY wanted.channel, w.depth
$$;
