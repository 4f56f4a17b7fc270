-- Find the best memories of a user by BM25 (k1 0.9, b 0.4). Word frequencies are those of all memories of the user; the
-- filters apply afterwards. `share` is BM25 divided by its maximum for the query, so it is between 0 and 1 and a word that
-- no memory contains lowers it. `rarity` is 1 for a memory with all words of the query of which one is in no other memory;
-- it falls quickly with the frequency of the word and is multiplied by the weight of the words that the memory contains. It is
-- up to 10 for an identifier, whatever the other words are. `matched` are the places of these words in the query. The first row holds the weight of each
-- word of the query, 1 for a word that only one memory contains, null for a stop word or a word that none contains.
-- For a user with more than 20 000 memories, unless p_exact, frequent words are not searched exhaustively. Their frequency
-- and weight are estimated from a thousand memories. All memories with a rare word are candidates; of the others those
-- that contain all frequent words of the query, or all but one, and so on, until there are enough. A single frequent word
-- is searched only if rare words find too few, because it weighs less than any of them. So the number of candidates is bounded,
-- however many words the query has. The plans are generic: they have one form, and planning them for each query would take as
-- long as searching a thousand memories.
-- SECURITY DEFINER: row level security disables the GIN index, because `&&` is not leakproof. It returns ids and scores;
-- the calling query checks the user, and reads the memories under row level security.
CREATE OR REPLACE FUNCTION {schema}.recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_filter {schema}.memory_filter,
    p_limit integer, p_exact boolean, p_selected bigint[]
) RETURNS TABLE (
    id bigint, bm25 double precision, share double precision, rarity double precision, matched integer[],
    weights double precision[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = off SET work_mem = '16MB'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_word_keys bigint[];
    v_times bigint[];
    v_keys bigint[];
    v_identifiers bigint[] := {schema}.memory_term_keys(p_app_name, p_user_id, p_identifiers);
    v_filters boolean := NOT (p_filter IS NULL);
    v_memories double precision;
    v_length double precision;
    v_base double precision := 0.9 * 0.6;
    v_slope double precision;
    v_frequent bigint[] := '{}';
    v_found double precision[] := '{}';
    v_rare bigint[];
    v_others bigint[] := '{}';
    v_enough integer := 2 * p_limit;
    v_brought bigint;
BEGIN
    SELECT s.memories, greatest(s.total_length::double precision / nullif(s.memories, 0), 1) INTO v_memories, v_length
      FROM {schema}.memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF v_memories IS NULL OR v_memories < 1 THEN
        RETURN;
    END IF;
    v_slope := 0.9 * 0.4 / v_length;
    SELECT array_agg(key ORDER BY place), array_agg(times ORDER BY place) INTO v_word_keys, v_times
      FROM (SELECT min(place) AS place, count(*) AS times,
                   ({schema}.memory_term_keys(p_app_name, p_user_id, word))[1] AS key
              FROM string_to_table(p_words, ' ') WITH ORDINALITY AS words (word, place)
             GROUP BY word ORDER BY 1 LIMIT 256) distinct_words;
    -- The first 64 words that are not stop words: the time of a GIN scan grows with the square of its keys, and it cannot be
    -- cancelled; each candidate is compared with each key.
    v_keys := ARRAY(SELECT key FROM unnest(v_word_keys) WITH ORDINALITY AS given (key, place)
                     WHERE key IS NOT NULL GROUP BY key ORDER BY min(place) LIMIT 64);
    v_rare := v_keys;
    IF v_memories > 20000 AND NOT p_exact THEN
        SELECT f.keys, f.found INTO v_frequent, v_found
          FROM {schema}.find_frequent_terms(p_app_name, p_user_id, v_keys, v_memories) f;
        v_rare := ARRAY(SELECT key FROM unnest(v_keys) AS key WHERE key <> ALL (v_frequent));
        IF p_selected IS NOT NULL THEN
            v_others := ARRAY(SELECT m.id FROM {schema}.memories m
                               WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (p_selected)
                                 AND m.terms && v_frequent);
        ELSIF v_frequent <> '{}' THEN
            SELECT count(*) INTO v_brought FROM (
                SELECT FROM {schema}.memories m
                 WHERE m.terms && v_rare AND {schema}.memory_passes(m, p_filter) LIMIT v_enough) counted;
            v_others := {schema}.find_by_frequent_terms(
                p_app_name, p_user_id, v_frequent[:6], p_filter, v_enough, CASE WHEN v_brought < v_enough THEN 1 ELSE 2 END);
        END IF;
    END IF;
    RETURN QUERY
    WITH wanted AS (
        SELECT key, sum(times)::double precision AS times, min(place)::integer AS place, key = ANY (v_identifiers) AS is_identifier,
               v_found[array_position(v_frequent, key)] AS estimate
          FROM unnest(v_word_keys, v_times) WITH ORDINALITY AS given (key, times, place)
         WHERE key = ANY (v_keys) GROUP BY key
    ), matching AS MATERIALIZED (
        -- The key already contains the user. This condition separates users even after a hash collision, in a form that
        -- the planner cannot use to scan all memories of a user instead.
        SELECT m.id, m.length, m.terms,
               CASE WHEN p_selected IS NOT NULL THEN m.id IN (SELECT unnest(p_selected))
                    WHEN v_filters THEN {schema}.memory_passes(m, p_filter)
                    ELSE m.duplicate_of IS NULL AND (m.expires_at IS NULL OR m.expires_at > now()) END AS passes
          FROM {schema}.memories m
         WHERE m.terms && v_rare
           AND m.app_name IS NOT DISTINCT FROM p_app_name AND m.user_id IS NOT DISTINCT FROM p_user_id
        UNION ALL
        SELECT m.id, m.length, m.terms, true
          FROM {schema}.memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_others) AND NOT m.terms && v_rare
    ), hits AS MATERIALIZED (
        -- Few keys: compare each memory with each key. Many keys: look each word of a memory up, which costs the same for all.
        SELECT wanted.key, matching.id, matching.length, matching.passes,
               cardinality(array_positions(matching.terms, wanted.key)) AS frequency
          FROM matching, wanted
         WHERE cardinality(v_keys) <= 4 AND matching.terms @> ARRAY[wanted.key]
        UNION ALL
        SELECT term.key, term.id, term.length, term.passes, count(*)::integer
          FROM (SELECT unnest(terms) AS key, id, length, passes FROM matching WHERE cardinality(v_keys) > 4) term
          JOIN wanted USING (key)
         GROUP BY term.key, term.id, term.length, term.passes
    ), counted AS (
        SELECT hits.key, count(*) AS memories FROM hits GROUP BY hits.key
    ), words AS MATERIALIZED (
        SELECT wanted.*, found > 0 AS is_known, weight, times * weight * 1.9 AS most,
               power(least(weight / ln(1 + (v_memories - 0.5) / 1.5), 1), 8) AS rareness
          FROM wanted
          LEFT JOIN counted USING (key)
         CROSS JOIN LATERAL (SELECT coalesce(wanted.estimate, counted.memories, 0) AS found) known
         CROSS JOIN LATERAL (SELECT ln(1 + (v_memories - least(v_memories, found) + 0.5) / (found + 0.5)) AS weight) weighed
    ), best AS MATERIALIZED (
        SELECT hits.id, sum(most * frequency / (frequency + v_base + v_slope * length)) AS bm25
          FROM hits JOIN words USING (key)
         WHERE passes
         GROUP BY hits.id ORDER BY 2 DESC, 1 DESC LIMIT p_limit
    ), described AS (
        SELECT id, bm25, array_agg(place) AS matched,
               greatest(max(rareness) * sum(weight) / (SELECT sum(weight) FROM words),
                        10 * coalesce(max(rareness) FILTER (WHERE is_identifier), 0)) AS rarity
          FROM best JOIN hits USING (id) JOIN words USING (key)
         GROUP BY id, bm25
    )
    SELECT d.id, d.bm25, d.bm25 / (SELECT sum(most) FROM words), d.rarity, d.matched,
           CASE WHEN row_number() OVER (ORDER BY d.bm25 DESC, d.id DESC) = 1 THEN
               ARRAY(SELECT CASE WHEN is_known THEN weight / ln(1 + (v_memories + 0.5) / 0.5) END
                       FROM unnest(v_word_keys) WITH ORDINALITY AS given (key, nth) LEFT JOIN words USING (key)
                      ORDER BY nth) END
      FROM described d ORDER BY d.bm25 DESC, d.id DESC;
END
$$;
