-- Return a number of an item's value: JSON's, or one that is stored as {"$float": …}; null for anything else.
CREATE OR REPLACE FUNCTION {schema}.graph_item_number(p_value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(p_value) = 'number' THEN p_value::numeric
                WHEN jsonb_typeof(p_value -> '$float') = 'string' THEN (p_value ->> '$float')::numeric END
$$;

-- Return whether two JSON values compare like this: numbers by value, texts by code point, other pairs never.
CREATE OR REPLACE FUNCTION {schema}.graph_item_compares(p_value jsonb, p_operator text, p_with jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE p_operator WHEN '$gt' THEN c.sign > 0 WHEN '$gte' THEN c.sign >= 0
                                    WHEN '$lt' THEN c.sign < 0 WHEN '$lte' THEN c.sign <= 0 END, false)
      FROM (SELECT CASE WHEN jsonb_typeof(p_value) = 'string' AND jsonb_typeof(p_with) = 'string'
                        THEN CASE WHEN p_value #>> '{}' < p_with #>> '{}' COLLATE "C" THEN -1
                                  WHEN p_value #>> '{}' = p_with #>> '{}' THEN 0 ELSE 1 END
                        ELSE sign({schema}.graph_item_number(p_value) - {schema}.graph_item_number(p_with)) END AS sign) c
$$;

-- Return whether the value of an item passes all conditions, an array of {"path": […], "operator": …, "value": …}. A
-- missing value is null.
CREATE OR REPLACE FUNCTION {schema}.graph_item_passes(p_value jsonb, p_conditions jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM (SELECT c ->> 'operator' AS operator, c -> 'value' AS expected,
                            coalesce(p_value #> ARRAY(SELECT jsonb_array_elements_text(c -> 'path')), 'null') AS found
                       FROM jsonb_array_elements(p_conditions) c) condition
         WHERE NOT CASE operator
                   WHEN '$eq' THEN found = expected
                   WHEN '$ne' THEN found <> expected
                   WHEN 'type' THEN jsonb_typeof(found) = expected #>> '{}'
                   WHEN 'length' THEN jsonb_typeof(found) = 'array' AND jsonb_array_length(
                        CASE WHEN jsonb_typeof(found) = 'array' THEN found ELSE '[]' END) = expected::integer
                   ELSE {schema}.graph_item_compares(found, operator, expected) END)
$$;

-- Return the items below a namespace whose values pass the conditions: without a vector the newest first, else the nearest
-- first with their score, and then those without a vector of the model. An item with several vectors counts with its nearest.
CREATE OR REPLACE FUNCTION {schema}.search_graph_items(
    p_app_name text, p_prefix text, p_conditions text, p_vector text, p_model text, p_distance text,
    p_limit integer, p_offset integer, p_refresh boolean, p_omit_expired boolean
) RETURNS TABLE (namespace text, key text, value text, created_at timestamptz, updated_at timestamptz,
                 score double precision) LANGUAGE plpgsql AS $$
DECLARE
    v_end text := CASE p_prefix WHEN '' THEN chr(1114111) ELSE left(p_prefix, -1) || '/' END;
    v_conditions jsonb := p_conditions;
    v_vector halfvec := p_vector;
    v_ids bigint[];
    v_distances double precision[];
BEGIN
    IF v_vector IS NULL THEN
        v_ids := ARRAY(
            SELECT i.id FROM {schema}.graph_items i
             WHERE i.app_name = p_app_name AND i.namespace >= p_prefix AND i.namespace < v_end
               AND (NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp())
               AND (v_conditions IS NULL OR {schema}.graph_item_passes(i.value, v_conditions))
             ORDER BY i.updated_at DESC, i.id DESC LIMIT p_limit OFFSET p_offset);
    ELSE
        SELECT array_agg(f.id ORDER BY f.distance, f.updated_at DESC, f.id DESC),
               array_agg(f.distance ORDER BY f.distance, f.updated_at DESC, f.id DESC)
          INTO v_ids, v_distances
          FROM (SELECT i.id, i.updated_at,
                       min(nullif(CASE p_distance WHEN 'l2' THEN v.embedding <-> v_vector
                                                  WHEN 'inner_product' THEN v.embedding <#> v_vector
                                                  ELSE v.embedding <=> v_vector END, 'NaN')) AS distance
                  FROM {schema}.graph_items i
                  LEFT JOIN {schema}.graph_item_vectors v ON v.item_id = i.id AND v.model = p_model
                 WHERE i.app_name = p_app_name AND i.namespace >= p_prefix AND i.namespace < v_end
                   AND (NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp())
                   AND (v_conditions IS NULL OR {schema}.graph_item_passes(i.value, v_conditions))
                 GROUP BY i.id
                 ORDER BY distance, i.updated_at DESC, i.id DESC LIMIT p_limit OFFSET p_offset) f;
    END IF;
    IF p_refresh THEN
        PERFORM {schema}.refresh_graph_items(v_ids);
    END IF;
    RETURN QUERY
        SELECT i.namespace, i.key, i.value::text, i.created_at, i.updated_at,
               CASE WHEN p_distance = 'cosine' THEN 1 - v_distances[found.place] ELSE - v_distances[found.place] END
          FROM unnest(v_ids) WITH ORDINALITY AS found (id, place) JOIN {schema}.graph_items i ON i.id = found.id
         ORDER BY found.place;
END
$$;
