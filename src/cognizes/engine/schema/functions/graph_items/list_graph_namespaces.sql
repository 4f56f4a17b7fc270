-- Return whether the labels of a namespace match all conditions, an array of {"type": "prefix" | "suffix", "path": […]}.
-- The label * of a path matches any label.
CREATE OR REPLACE FUNCTION {schema}.graph_namespace_matches(p_labels text[], p_conditions jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM (SELECT ARRAY(SELECT jsonb_array_elements_text(c -> 'path')) AS path,
                            CASE c ->> 'type' WHEN 'suffix'
                                 THEN cardinality(p_labels) - jsonb_array_length(c -> 'path') ELSE 0 END AS before
                       FROM jsonb_array_elements(p_conditions) c) condition
         WHERE cardinality(path) > cardinality(p_labels)
            OR EXISTS (SELECT FROM unnest(path) WITH ORDINALITY AS wanted (label, place)
                        WHERE wanted.label <> '*' AND wanted.label <> p_labels[before + wanted.place]))
$$;

-- Return the namespaces of a store that begin with a prefix and match all conditions, cut to a depth, in order.
CREATE OR REPLACE FUNCTION {schema}.list_graph_namespaces(
    p_app_name text, p_prefix text, p_conditions text, p_max_depth integer, p_limit integer, p_offset integer,
    p_omit_expired boolean
) RETURNS SETOF text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_end text := CASE p_prefix WHEN '' THEN chr(1114111) ELSE left(p_prefix, -1) || '/' END;
    v_conditions jsonb := p_conditions;
BEGIN
    RETURN QUERY
        SELECT DISTINCT (CASE WHEN p_max_depth IS NULL THEN n.labels ELSE n.labels[1:p_max_depth] END) COLLATE "C" AS labels
          FROM (SELECT string_to_array(left(stored.namespace, -1), '.') AS labels
                  FROM (SELECT DISTINCT i.namespace FROM {schema}.graph_items i
                         WHERE i.app_name = p_app_name AND i.namespace >= p_prefix AND i.namespace < v_end
                           AND (NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp())) stored) n
         WHERE {schema}.graph_namespace_matches(n.labels, v_conditions)
         ORDER BY labels LIMIT p_limit OFFSET p_offset;
END
$$;
