-- Return the ids of the memories of a user that match a filter if at most p_limit match; null means that the filter is better
-- applied to the rows that a search finds: it is not selective, or cheap and the user has few memories. The first condition that is present chooses the
-- index: labels, a range of metadata, the namespace, kind and time.
-- SECURITY DEFINER: row level security disables the indexes, because `@>` and comparisons of numbers are not leakproof. It
-- returns ids; the calling query checks the user, and reads the memories under row level security.
CREATE OR REPLACE FUNCTION {schema}.select_memories(
    p_app_name text, p_user_id text, p_filter {schema}.memory_filter, p_limit integer
) RETURNS bigint[] LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_labels bigint[] := {schema}.memory_labels(p_app_name, p_user_id, (p_filter).tags, (p_filter).metadata, NULL);
    v_from text := '{schema}.memories m WHERE m.app_name = $1 AND m.user_id = $2';
    v_column text;
    v_ids bigint[];
    v_memories bigint;
    v_sampled bigint;
    v_passing bigint;
BEGIN
    SELECT s.memories INTO v_memories FROM {schema}.memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF v_labels <> '{}' THEN
        -- In a form that the planner cannot use to scan all memories of the user instead.
        v_from := '{schema}.memories m WHERE m.labels @> $5 AND m.labels <> ''{}''
                   AND m.app_name IS NOT DISTINCT FROM $1 AND m.user_id IS NOT DISTINCT FROM $2';
    ELSIF (p_filter).range_name IS NOT NULL THEN
        v_column := CASE WHEN (p_filter).range_numbers IS NULL THEN 'text' ELSE 'number' END;
        v_from := format('(SELECT DISTINCT r.memory_id FROM {schema}.memory_metadata r
                            WHERE r.name = ($3).range_name AND r.app_name = $1 AND r.user_id = $2 AND r.%1$I IS NOT NULL
                              AND (($3).range_%1$ss[1] IS NULL OR r.%1$I >= ($3).range_%1$ss[1])
                              AND (($3).range_%1$ss[2] IS NULL OR r.%1$I <= ($3).range_%1$ss[2])) chosen
                          JOIN {schema}.memories m ON m.app_name = $1 AND m.user_id = $2 AND m.id = chosen.memory_id
                         WHERE true', v_column);
    ELSIF v_memories IS NULL OR v_memories <= 20000 THEN
        RETURN NULL;
    ELSIF (p_filter).namespace <> '' THEN
        v_from := v_from || ' AND m.namespace <> '''' AND md5(m.namespace) = md5(($3).namespace)';
    ELSIF coalesce((p_filter).kinds::text, (p_filter).since::text, (p_filter).until::text) IS NOT NULL THEN
        v_from := v_from || ' AND m.kind = ANY (coalesce(($3).kinds, ''{long_term,episodic,turn,note}''))
                              AND m.created_at >= coalesce(($3).since, ''-infinity'')
                              AND m.created_at < coalesce(($3).until, ''infinity'')';
    ELSE
        RETURN NULL;
    END IF;
    IF v_memories > 20000 THEN
        -- A hundred memories of twenty periods show a filter that clearly passes too many, without reading them.
        SELECT count(*), count(*) FILTER (WHERE {schema}.memory_passes(part.whole, p_filter)) INTO v_sampled, v_passing
          FROM (SELECT min(m.id) AS first, max(m.id) AS last FROM {schema}.memories m
                 WHERE m.app_name = p_app_name AND m.user_id = p_user_id) span,
               generate_series(0, 19) AS number,
               LATERAL (SELECT m AS whole FROM {schema}.memories m
                         WHERE m.app_name = p_app_name AND m.user_id = p_user_id
                           AND m.id >= span.first + (span.last - span.first) / 20 * number
                         ORDER BY m.id LIMIT 5) part;
        IF v_passing >= 10 AND v_memories * v_passing > 2 * p_limit * v_sampled THEN
            RETURN NULL;
        END IF;
    END IF;
    EXECUTE format('SELECT coalesce(array_agg(id), ''{}'') FROM (
                        SELECT m.id FROM %s AND {schema}.memory_passes(m, $3) LIMIT $4 + 1) chosen', v_from)
       INTO v_ids USING p_app_name, p_user_id, p_filter, p_limit, v_labels;
    RETURN CASE WHEN cardinality(v_ids) <= p_limit THEN v_ids END;
END
$$;

-- Return the ids of the memories that came from an event: the message itself, and facts and episodes.
-- SECURITY DEFINER: as above.
CREATE OR REPLACE FUNCTION {schema}.memories_of_event(
    p_app_name text, p_user_id text, p_session_id text, p_event_id text
) RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT ARRAY(
        SELECT t.id FROM {schema}.memories t
         WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
           AND t.session_id = p_session_id AND t.kind = 'turn' AND t.source_id = p_event_id
        UNION
        SELECT d.id FROM {schema}.memories d
         WHERE d.labels @> {schema}.memory_labels(
                   p_app_name, p_user_id, NULL, NULL,
                   jsonb_build_array(jsonb_build_object('session_id', p_session_id, 'event_id', p_event_id)))
           AND d.labels <> '{}' AND d.app_name IS NOT DISTINCT FROM p_app_name AND d.user_id IS NOT DISTINCT FROM p_user_id
           AND d.sources @> jsonb_build_array(jsonb_build_object('session_id', p_session_id, 'event_id', p_event_id)))
$$;
