-- Find the memories of a user nearest to a vector, with their cosine: by an exact scan for a user with few memories or
-- with p_exact, of the memories p_selected if they are given, else by the HNSW index. Returns also the cosines of the
-- memories p_ids, some of them twice.
CREATE OR REPLACE FUNCTION {schema}.recall_by_vector(
    p_app_name text, p_user_id text, p_model text, p_dimension integer, p_query text, p_filter {schema}.memory_filter,
    p_limit integer, p_exact boolean, p_selected bigint[], p_ids bigint[]
) RETURNS TABLE (id bigint, cosine double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'relaxed_order' SET hnsw.ef_search = 200 SET hnsw.max_scan_tuples = 200000 AS $$
DECLARE
    v_has_graph boolean;
    v_filter text := '';
    -- Few: they are deleted soon. A duplicate has no vector.
    v_expired bigint[] := ARRAY(SELECT m.id FROM {schema}.memories m
                                 WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.expires_at <= now()
                                 LIMIT 10000);
BEGIN
    SELECT s.graph_is_ready AND s.graph_model = p_model AND NOT p_exact INTO v_has_graph
      FROM {schema}.memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF p_selected IS NOT NULL THEN
        v_has_graph := false;
        v_filter := 'AND memory_id = ANY ($7)';
    ELSIF NOT (p_filter IS NULL) THEN
        v_filter := 'AND EXISTS (SELECT FROM {schema}.memories m
                                  WHERE m.app_name = v.app_name AND m.user_id = v.user_id AND m.id = v.memory_id
                                    AND {schema}.memory_passes(m, $4))';
    ELSIF v_expired <> '{}' THEN
        v_filter := 'AND memory_id <> ALL ($8)';
    END IF;
    IF v_has_graph THEN
        -- The planner underestimates the cost of sorting the rows of a btree scan.
        PERFORM set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true);
        RETURN QUERY EXECUTE format(
            '(SELECT memory_id, 1 - (embedding::halfvec(%s) <=> $3::halfvec(%s)) FROM {schema}.memory_vectors v
              WHERE in_graph AND model = %L AND app_name IS NOT DISTINCT FROM $1 AND user_id IS NOT DISTINCT FROM $2 %s
              ORDER BY embedding::halfvec(%s) <=> $3::halfvec(%s) LIMIT $5)
             UNION ALL
             SELECT memory_id, 1 - (embedding <=> $3::halfvec) FROM {schema}.memory_vectors v
              WHERE app_name = $1 AND user_id = $2 AND memory_id = ANY ($6) AND model = %L',
            p_dimension, p_dimension, p_model, v_filter, p_dimension, p_dimension, p_model)
        USING p_app_name, p_user_id, p_query, p_filter, p_limit, p_ids, p_selected, v_expired;
        PERFORM set_config('enable_sort', 'on', true), set_config('enable_bitmapscan', 'on', true);
    ELSE
        RETURN QUERY EXECUTE format(
            'WITH compared AS MATERIALIZED (
                 SELECT memory_id, embedding <=> $3::halfvec AS distance FROM {schema}.memory_vectors v
                  WHERE app_name = $1 AND user_id = $2 AND model = %L %s)
             (SELECT memory_id, 1 - distance FROM compared ORDER BY distance LIMIT $5)
             UNION ALL
             SELECT memory_id, 1 - distance FROM compared WHERE memory_id = ANY ($6)', p_model, v_filter)
        USING p_app_name, p_user_id, p_query, p_filter, p_limit, p_ids, p_selected, v_expired;
    END IF;
END
$$;
