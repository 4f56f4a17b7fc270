-- Return the index keys of tags, of the values of metadata and of source events. Each is a hash that contains the user. A list
-- in metadata has one key per value; 1 and 1.0 have the same key.
CREATE OR REPLACE FUNCTION {schema}.memory_labels(
    p_app_name text, p_user_id text, p_tags text[], p_metadata jsonb, p_sources jsonb
) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(DISTINCT
               ('x' || left(md5(concat_ws(chr(1), p_app_name, p_user_id, label.kind, label.name, label.value)), 16))::bit(64)::bigint), '{}')
      FROM (SELECT 'tag' AS kind, tag AS name, '' AS value FROM unnest(p_tags) AS tag
            UNION ALL
            SELECT 'metadata', entry.key,
                   CASE jsonb_typeof(item.value) WHEN 'number' THEN trim_scale((item.value #>> '{}')::numeric)::text
                                                 ELSE item.value::text END
              FROM jsonb_each(p_metadata) AS entry,
                   jsonb_array_elements(CASE jsonb_typeof(entry.value) WHEN 'array' THEN entry.value
                                                                       ELSE jsonb_build_array(entry.value) END) AS item
            UNION ALL
            SELECT 'event', source.value ->> 'session_id', source.value ->> 'event_id'
              FROM jsonb_array_elements(p_sources) AS source) label
$$;
