-- Find the messages of an app, a user or a thread that contain words of a query, best first. Reads up to 1 000 messages per
-- word, and up to 1 000 that contain all words, so the cost is limited however frequent a word is. A rare word counts more
-- than a frequent one; a repeated word, or one in a short message, counts a little more. `share` is the score divided by its
-- maximum for the query. `matched` are the places of the found words in the query.
-- SECURITY DEFINER: row level security disables the GIN index, because `@>` is not leakproof. It returns keys and scores;
-- the calling query reads the messages under row level security.
CREATE OR REPLACE FUNCTION {schema}.find_messages_by_words(
    p_app_name text, p_user_id text, p_thread_id uuid, p_words text, p_roles text[], p_since timestamptz,
    p_until timestamptz, p_limit integer
) RETURNS TABLE (thread_id uuid, sequence_num bigint, share double precision, matched integer[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '16MB' AS $$
#variable_conflict use_column
DECLARE
    -- A key is a hash of a word and the app, or the user. Aligned with the first distinct words of the query.
    v_word_keys bigint[] := ARRAY(
        SELECT ({schema}.memory_term_keys(p_app_name, coalesce(p_user_id, ''), word))[1]
          FROM string_to_table(p_words, ' ') WITH ORDINALITY AS words (word, place) GROUP BY word ORDER BY min(place) LIMIT 64);
    v_keys bigint[] := ARRAY(SELECT key FROM unnest(v_word_keys) WITH ORDINALITY AS given (key, place)
                              WHERE key IS NOT NULL GROUP BY key ORDER BY min(place) LIMIT 32);
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
        SELECT wanted.key, array_position(v_word_keys, wanted.key) AS place,
               1 / (1 + ln(greatest((SELECT count(*) FROM hits WHERE hits.key = wanted.key), 1))) AS weight
          FROM unnest(v_keys) AS wanted (key)
    )
    SELECT hits.thread_id, hits.sequence_num,
           (sum(weight * frequency / (frequency + 0.9 * (0.8 + length / 200))) / (SELECT sum(weight) FROM words))
               ::double precision,
           array_agg(place)
      FROM hits JOIN words USING (key)
     GROUP BY hits.thread_id, hits.sequence_num ORDER BY 3 DESC, 2 DESC, 1 LIMIT p_limit;
END
$$;
