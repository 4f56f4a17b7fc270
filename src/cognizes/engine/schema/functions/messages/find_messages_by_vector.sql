-- Find the messages of an app, a user or a thread nearest to a vector, with their cosine: by an exact scan of a thread, and
-- of a user or an app with less than 20 000 events, else by the HNSW index.
CREATE OR REPLACE FUNCTION {schema}.find_messages_by_vector(
    p_app_name text, p_user_id text, p_thread_id uuid, p_model text, p_dimension integer, p_query text, p_roles text[],
    p_since timestamptz, p_until timestamptz, p_limit integer
) RETURNS TABLE (thread_id uuid, sequence_num bigint, cosine double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'relaxed_order' SET hnsw.ef_search = 200 SET hnsw.max_scan_tuples = 200000 AS $$
#variable_conflict use_column
DECLARE
    v_is_few boolean := p_thread_id IS NOT NULL;
BEGIN
    IF NOT v_is_few THEN
        SELECT count(*) < 5000 AND coalesce(sum(last_sequence), 0) < 20000 INTO v_is_few
          FROM (SELECT last_sequence FROM {schema}.threads t
                 WHERE t.app_name = p_app_name AND (p_user_id IS NULL OR t.user_id = p_user_id) LIMIT 5000) first_threads;
    END IF;
    IF v_is_few OR NOT EXISTS (SELECT FROM pg_index WHERE indisvalid AND indexrelid = to_regclass(
                                   format('%s.%I', '{schema}', 'messages_graph_' || md5(p_model)))) THEN
        RETURN QUERY
        WITH compared AS MATERIALIZED (
            SELECT m.thread_id, m.sequence_num, m.embedding <=> p_query::vector AS distance
              FROM {schema}.threads t JOIN {schema}.messages m ON m.thread_id = t.id
             WHERE t.app_name = p_app_name AND (p_user_id IS NULL OR t.user_id = p_user_id)
               AND (p_thread_id IS NULL OR t.id = p_thread_id) AND m.embedding_model = p_model
               AND m.embedding IS NOT NULL
               AND {schema}.message_passes(m, p_thread_id, p_roles, p_since, p_until)
        )
        SELECT c.thread_id, c.sequence_num, 1 - c.distance FROM compared c ORDER BY c.distance LIMIT p_limit;
    ELSE
        -- The planner underestimates the cost of sorting the rows of a btree scan.
        PERFORM set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true);
        RETURN QUERY EXECUTE format(
            'SELECT m.thread_id, m.sequence_num, 1 - (m.embedding::halfvec(%s) <=> $3::halfvec(%s))
               FROM {schema}.messages m
              WHERE m.embedding_model = %L AND m.app_name IS NOT DISTINCT FROM $1
                AND {schema}.message_passes(m, NULL, $4, $5, $6)
                AND ($2 IS NULL OR EXISTS (SELECT FROM {schema}.threads t WHERE t.id = m.thread_id AND t.user_id = $2))
              ORDER BY m.embedding::halfvec(%s) <=> $3::halfvec(%s) LIMIT $7',
            p_dimension, p_dimension, p_model, p_dimension, p_dimension)
        USING p_app_name, p_user_id, p_query, p_roles, p_since, p_until, p_limit;
        PERFORM set_config('enable_sort', 'on', true), set_config('enable_bitmapscan', 'on', true);
    END IF;
END
$$;
