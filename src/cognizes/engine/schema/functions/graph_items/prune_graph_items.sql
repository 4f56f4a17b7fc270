-- Delete up to p_limit expired items of graphs' stores. Returns their number.
CREATE OR REPLACE FUNCTION {schema}.prune_graph_items(p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.graph_items i
         USING (SELECT id FROM {schema}.graph_items WHERE expires_at < now()
                 ORDER BY expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED) expired
         WHERE i.id = expired.id RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
