-- Delete the channel values of namespaces that no checkpoint refers to. Values of a checkpoint that is stored later are not
-- among them: a checkpoint and its new values are stored by one function.
CREATE OR REPLACE FUNCTION {schema}.delete_unused_channels(p_namespaces bigint[]) RETURNS void LANGUAGE sql AS $$
    WITH used AS MATERIALIZED (
        SELECT DISTINCT c.namespace_id, value.channel, value.version
          FROM {schema}.graph_checkpoints c, unnest(c.channels, c.versions) AS value (channel, version)
         WHERE c.namespace_id = ANY (p_namespaces)
    )
    DELETE FROM {schema}.graph_channels v
     WHERE v.namespace_id = ANY (p_namespaces)
       AND NOT EXISTS (SELECT FROM used u
                        WHERE u.namespace_id = v.namespace_id AND u.channel = v.channel AND u.version = v.version)
$$;

-- Keep the newest checkpoint of every namespace of threads, and the ancestors from which LangGraph rebuilds its delta
-- channels: back to the nearest one that has a value of each. A subgraph's call (its namespace has a task id behind a
-- colon) is deleted with the checkpoint of the graph that it began at.
CREATE OR REPLACE FUNCTION {schema}.prune_graph_checkpoints(p_app_name text, p_thread_ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_namespaces bigint[];
    v_kept_namespaces bigint[];
    v_kept_ids text[];
BEGIN
    -- The same rows as a writer locks, in one order; a writer of one of these threads waits for this transaction.
    SELECT array_agg(locked.id) INTO v_namespaces
      FROM (SELECT n.id FROM {schema}.graph_namespaces n
             WHERE md5(n.thread_id) = ANY (SELECT md5(t) FROM unnest(p_thread_ids) t) AND n.app_name = p_app_name
               AND n.thread_id = ANY (p_thread_ids)
             ORDER BY n.id
               FOR UPDATE) locked;
    WITH RECURSIVE heads AS (
        SELECT DISTINCT ON (c.namespace_id) c.namespace_id, c.checkpoint_id, c.parent_id,
               ARRAY(SELECT jsonb_object_keys(
                         CASE jsonb_typeof(c.metadata -> 'counters_since_delta_snapshot')
                         WHEN 'object' THEN c.metadata -> 'counters_since_delta_snapshot' ELSE '{}' END)) AS wanted,
               c.channels || c.inlined AS stored
          FROM {schema}.graph_checkpoints c
         WHERE c.namespace_id = ANY (v_namespaces)
         ORDER BY c.namespace_id, c.checkpoint_id DESC
    ), walk AS (
        SELECT h.namespace_id, h.checkpoint_id, h.parent_id,
               ARRAY(SELECT unnest(h.wanted) EXCEPT SELECT unnest(h.stored)) AS wanted
          FROM heads h
        UNION ALL
        SELECT c.namespace_id, c.checkpoint_id, c.parent_id,
               ARRAY(SELECT unnest(w.wanted) EXCEPT SELECT unnest(c.channels || c.inlined))
          FROM walk w
          JOIN {schema}.graph_checkpoints c ON c.namespace_id = w.namespace_id AND c.checkpoint_id = w.parent_id
         WHERE w.wanted <> '{}'
    )
    SELECT array_agg(namespace_id), array_agg(checkpoint_id) INTO v_kept_namespaces, v_kept_ids FROM walk;
    DELETE FROM {schema}.graph_namespaces n
     USING unnest(v_kept_namespaces, v_kept_ids) AS kept (namespace_id, checkpoint_id)
      JOIN {schema}.graph_checkpoints c ON c.namespace_id = kept.namespace_id AND c.checkpoint_id = kept.checkpoint_id
     WHERE n.id = kept.namespace_id AND n.checkpoint_ns LIKE '%:%'
       AND EXISTS (
           SELECT FROM {schema}.graph_namespaces r
             JOIN {schema}.graph_checkpoints root ON root.namespace_id = r.id
            WHERE md5(r.thread_id) = md5(n.thread_id) AND r.app_name = n.app_name AND md5(r.checkpoint_ns) = md5('')
              AND r.thread_id = n.thread_id AND r.checkpoint_ns = ''
              AND root.checkpoint_id = c.metadata -> 'parents' ->> ''
              AND (r.id, root.checkpoint_id::text) NOT IN (SELECT * FROM unnest(v_kept_namespaces, v_kept_ids)));
    WITH gone AS (
        DELETE FROM {schema}.graph_checkpoints c
         WHERE c.namespace_id = ANY (v_namespaces)
           AND (c.namespace_id, c.checkpoint_id::text) NOT IN (SELECT * FROM unnest(v_kept_namespaces, v_kept_ids))
        RETURNING c.namespace_id, c.checkpoint_id
    )
    -- Writes of a checkpoint that is not stored yet stay.
    DELETE FROM {schema}.graph_writes w USING gone
     WHERE w.namespace_id = gone.namespace_id AND w.checkpoint_id = gone.checkpoint_id;
    UPDATE {schema}.graph_checkpoints c SET parent_id = NULL
     WHERE c.namespace_id = ANY (v_namespaces) AND c.parent_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM {schema}.graph_checkpoints p
                        WHERE p.namespace_id = c.namespace_id AND p.checkpoint_id = c.parent_id);
    PERFORM {schema}.delete_unused_channels(v_namespaces);
END
$$;

-- Delete the checkpoints that runs stored, and their writes. Returns the number of checkpoints.
CREATE OR REPLACE FUNCTION {schema}.delete_graph_runs(p_app_name text, p_run_ids text[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_namespaces bigint[];
    v_count bigint;
BEGIN
    SELECT array_agg(locked.id) INTO v_namespaces
      FROM (SELECT n.id FROM {schema}.graph_namespaces n
             WHERE n.id IN (SELECT c.namespace_id FROM {schema}.graph_checkpoints c
                             WHERE c.app_name = p_app_name AND c.run_id IS NOT NULL
                               AND md5(c.run_id) = ANY (SELECT md5(r) FROM unnest(p_run_ids) r)
                               AND c.run_id = ANY (p_run_ids))
             ORDER BY n.id
               FOR UPDATE) locked;
    WITH gone AS (
        DELETE FROM {schema}.graph_checkpoints c
         WHERE c.namespace_id = ANY (v_namespaces) AND c.run_id = ANY (p_run_ids)
        RETURNING c.namespace_id, c.checkpoint_id
    ), writes AS (
        DELETE FROM {schema}.graph_writes w USING gone
         WHERE w.namespace_id = gone.namespace_id AND w.checkpoint_id = gone.checkpoint_id
    )
    SELECT count(*) INTO v_count FROM gone;
    PERFORM {schema}.delete_unused_channels(v_namespaces);
    RETURN v_count;
END
$$;
