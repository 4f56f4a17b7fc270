-- Find the messages of an app, a user or a thread that contain words of a query, best first. Reads up to 1 000 messages per
-- word, and up to 1 000 that contain all words, so the cost is limited however frequent a word is. A rare word counts more
-- than a frequent one; a repeated word, or one in a short message, counts a little more.
-- SECURITY DEFINER: row level security disables the GIN index, because `@>` is not leakproof. It returns keys and scores;
-- the calling query reads the messages under row level security.
CREATE OR REPLACE FUNCTION {schema}.find_messages_by_words(
    p_app_name text, p_user_id text, p_thread_id uuid, p_words text, p_roles text[], p_since timestamptz,
    p_until timestamptz, p_limit integer
) RETURNS TABLE (thread_id uuid, sequence_num bigint, score double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '16MB' AS $$
#variable_conflict use_column
DECLARE
    -- A key is a hash of a word and the app, or the user.
    v_keys bigint[] := (SELECT array_agg(DISTINCT key) FROM unnest(
        ({schema}.memory_term_keys(p_app_name, coalesce(p_user_id, ''), p_words))[:32]) AS key);
BEGIN
    RETURN QUERY
    WITH found AS (
        (SELECT m.thread_id, m.sequence_num, m.terms FROM {schema}.messages m
          WHERE cardinality(v_keys) > 1 AND m.terms @> v_keys AND m.terms IS NOT NULL
            AND m.app_name IS NOT DISTINCT FROM p_app_name
            AND {schema}.message_passes(m, p_thread_id, p_roles, p_since, p_until) LIMIT 1000)
        UNION ALL
        SELECT part.thread_id, part.sequence_num, part.terms
          FROM unnest(v_keys) AS wanted (key),
               LATERAL (SELECT m.thread_id, m.sequence_num, m.terms FROM {schema}.messages m
                         WHERE m.terms @> ARRAY[wanted.key] AND m.terms IS NOT NULL
                           AND m.app_name IS NOT DISTINCT FROM p_app_name
                           AND {schema}.message_passes(m, p_thread_id, p_roles, p_since, p_until) LIMIT 1000) part
    ), candidates AS MATERIALIZED (
        SELECT DISTINCT ON (thread_id, sequence_num) * FROM found ORDER BY thread_id, sequence_num
    ), hits AS MATERIALIZED (
        SELECT wanted.key, c.thread_id, c.sequence_num, cardinality(c.terms) / 2.0 AS length,
               cardinality(array_positions(c.terms, wanted.key)) AS frequency
          FROM candidates c, unnest(v_keys) AS wanted (key)
         WHERE c.terms @> ARRAY[wanted.key]
    ), words AS (
        SELECT key, 1 / (1 + ln(count(*))) AS weight FROM hits GROUP BY key
    )
    SELECT hits.thread_id, hits.sequence_num,
           sum(weight * frequency * 1.9 / (frequency + 0.9 * (0.8 + length / 200)))::double precision
      FROM hits JOIN words USING (key)
     GROUP BY hits.thread_id, hits.sequence_num ORDER BY 3 DESC, 2 DESC, 1 LIMIT p_limit;
END
$$;
