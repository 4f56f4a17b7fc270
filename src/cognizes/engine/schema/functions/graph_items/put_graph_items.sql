-- Store items of a graph's store, replace those that exist with their vectors, and delete those whose value is null. Each
-- item occurs once. `p_vector_items` has the place of the item, from 1, to which a vector belongs. Runs with an attempt must
-- be held by it (see check_fence).
CREATE OR REPLACE FUNCTION {schema}.put_graph_items(
    p_app_name text, p_namespaces text[], p_keys text[], p_values text[], p_users text[], p_ttls double precision[],
    p_vector_items integer[], p_models text[], p_vectors text[],
    p_fence_thread_ids uuid[], p_fence_run_ids text[], p_fence_attempts integer[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM {schema}.check_fence(f.thread_id, f.run_id, f.attempt)
       FROM (SELECT DISTINCT thread_id, run_id, attempt
               FROM unnest(p_fence_thread_ids, p_fence_run_ids, p_fence_attempts) AS fence (thread_id, run_id, attempt)
              ORDER BY thread_id) f;
    -- All rows in one order before the first change: two writers of the same items cannot wait for each other.
    PERFORM FROM (SELECT i.id
                    FROM unnest(p_namespaces, p_keys) AS new (namespace, key)
                    JOIN {schema}.graph_items i
                      ON i.app_name = p_app_name AND i.namespace = new.namespace AND md5(i.key) = md5(new.key)
                   ORDER BY i.namespace, md5(i.key) FOR UPDATE OF i) locked;
    DELETE FROM {schema}.graph_items i
     USING unnest(p_namespaces, p_keys, p_values) AS old (namespace, key, value)
     WHERE old.value IS NULL
       AND i.app_name = p_app_name AND i.namespace = old.namespace AND md5(i.key) = md5(old.key) AND i.key = old.key;
    INSERT INTO {schema}.graph_items AS i (app_name, user_id, namespace, key, value, ttl, expires_at)
    SELECT p_app_name, new.user_id, new.namespace, new.key, new.value::jsonb, make_interval(secs => new.ttl),
           clock_timestamp() + make_interval(secs => new.ttl)
      FROM unnest(p_namespaces, p_keys, p_values, p_users, p_ttls) AS new (namespace, key, value, user_id, ttl)
     WHERE new.value IS NOT NULL
     ORDER BY new.namespace COLLATE "C", md5(new.key)
    ON CONFLICT (app_name, namespace, md5(key)) DO UPDATE
       SET user_id = excluded.user_id, value = excluded.value, ttl = excluded.ttl, expires_at = excluded.expires_at,
           updated_at = clock_timestamp();
    SELECT array_agg(i.id ORDER BY new.place) INTO v_ids
      FROM unnest(p_namespaces, p_keys) WITH ORDINALITY AS new (namespace, key, place)
      LEFT JOIN {schema}.graph_items i
        ON i.app_name = p_app_name AND i.namespace = new.namespace AND md5(i.key) = md5(new.key) AND i.key = new.key;
    DELETE FROM {schema}.graph_item_vectors v WHERE v.item_id = ANY (v_ids);
    INSERT INTO {schema}.graph_item_vectors (item_id, position, app_name, model, embedding)
    SELECT v_ids[new.item], new.place, p_app_name, new.model, new.embedding::halfvec
      FROM unnest(p_vector_items, p_models, p_vectors) WITH ORDINALITY AS new (item, model, embedding, place);
END
$$;
