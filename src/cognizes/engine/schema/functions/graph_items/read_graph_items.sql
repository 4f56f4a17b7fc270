-- Let items with a ttl expire that long after now. An item that a writer has locked is left out: the write sets its expiry.
-- A refresh that would add less than a hundredth of the ttl is left out, so that frequent reads do not write.
CREATE OR REPLACE FUNCTION {schema}.refresh_graph_items(p_ids bigint[]) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.graph_items i SET expires_at = clock_timestamp() + i.ttl
      FROM (SELECT id FROM {schema}.graph_items
             WHERE id = ANY (p_ids) AND ttl IS NOT NULL AND expires_at < clock_timestamp() + ttl * 0.99
             FOR NO KEY UPDATE SKIP LOCKED) due
     WHERE i.id = due.id
$$;

-- Return the stored items among (namespace, key) pairs, each with its place from 1; those of p_refresh live longer.
CREATE OR REPLACE FUNCTION {schema}.get_graph_items(
    p_app_name text, p_namespaces text[], p_keys text[], p_refresh boolean[], p_omit_expired boolean
) RETURNS TABLE (place bigint, value text, created_at timestamptz, updated_at timestamptz) LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
    v_places bigint[];
    v_refresh bigint[];
BEGIN
    SELECT array_agg(i.id), array_agg(wanted.place), array_agg(i.id) FILTER (WHERE wanted.refresh AND i.ttl IS NOT NULL)
      INTO v_ids, v_places, v_refresh
      FROM unnest(p_namespaces, p_keys, p_refresh) WITH ORDINALITY AS wanted (namespace, key, refresh, place)
      JOIN {schema}.graph_items i
        ON i.app_name = p_app_name AND i.namespace = wanted.namespace AND md5(i.key) = md5(wanted.key)
           AND i.key = wanted.key
     WHERE NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp();
    IF v_refresh IS NOT NULL THEN
        PERFORM {schema}.refresh_graph_items(v_refresh);
    END IF;
    RETURN QUERY
        SELECT found.place, i.value::text, i.created_at, i.updated_at
          FROM unnest(v_ids, v_places) AS found (id, place) JOIN {schema}.graph_items i ON i.id = found.id;
END
$$;
