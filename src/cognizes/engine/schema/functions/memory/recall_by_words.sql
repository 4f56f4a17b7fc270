-- Find the best memories of a user by BM25 (k1 0.9, b 0.4: for short texts). Word frequencies are those of all memories of
-- the user; the filters apply afterwards. `rarity` is 1 for a memory with a word of the query that no other memory
-- contains, and falls quickly with the frequency of the word; an identifier counts twice.
-- For a user with more than 20 000 memories, unless p_exact, frequent words are not searched exhaustively. Their frequency
-- and weight are estimated from a thousand memories. All memories with a rare word are candidates; of the others those
-- that contain all frequent words of the query, or all but one, and so on, until there are enough. A single frequent word
-- is searched only if rare words find too few, because it weighs less than any of them.
-- SECURITY DEFINER: row level security disables the GIN index, because `&&` is not leakproof. It returns ids and scores;
-- the calling query checks the user, and reads the memories under row level security.
CREATE OR REPLACE FUNCTION {schema}.recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer, p_exact boolean
) RETURNS TABLE (id bigint, bm25 double precision, rarity double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '16MB' AS $$
#variable_conflict use_column
DECLARE
    -- Limited here too: the time of a GIN scan grows with the square of its keys, and it cannot be cancelled.
    v_keys bigint[] := ({schema}.memory_term_keys(p_app_name, p_user_id, p_words))[:2048];
    v_identifiers bigint[] := {schema}.memory_term_keys(p_app_name, p_user_id, p_identifiers);
    v_filters boolean := coalesce(p_agent_id, p_namespace, p_kinds::text, p_since::text, p_until::text) IS NOT NULL;
    v_memories double precision;
    v_length double precision;
    v_frequent bigint[] := '{}';
    v_found double precision[] := '{}';
    v_rare bigint[] := v_keys;
    v_others bigint[] := '{}';
    v_enough integer := 2 * p_limit;
    v_brought bigint;
BEGIN
    SELECT s.memories, greatest(s.total_length::double precision / nullif(s.memories, 0), 1) INTO v_memories, v_length
      FROM {schema}.memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF v_memories IS NULL OR v_memories < 1 THEN
        RETURN;
    END IF;
    IF v_memories > 20000 AND NOT p_exact THEN
        SELECT f.keys, f.found INTO v_frequent, v_found
          FROM {schema}.find_frequent_terms(p_app_name, p_user_id, v_keys, v_memories) f;
        v_rare := ARRAY(SELECT key FROM unnest(v_keys) AS key WHERE key <> ALL (v_frequent));
        SELECT count(*) INTO v_brought FROM (
            SELECT FROM {schema}.memories m
             WHERE m.terms && v_rare
               AND {schema}.memory_passes(m, p_agent_id, p_kinds, p_namespace, p_since, p_until) LIMIT v_enough) counted;
        v_others := {schema}.find_by_frequent_terms(
            p_app_name, p_user_id, v_frequent[:6], p_agent_id, p_kinds, p_namespace, p_since, p_until, v_enough,
            CASE WHEN v_brought < v_enough THEN 1 ELSE 2 END);
    END IF;
    RETURN QUERY
    WITH wanted AS (
        SELECT key, count(*) AS times, key = ANY (v_identifiers) AS is_identifier,
               v_found[array_position(v_frequent, key)] AS estimate
          FROM unnest(v_keys) AS key GROUP BY key
    ), matching AS MATERIALIZED (
        -- The key already contains the user. This condition separates users even after a hash collision, in a form that
        -- the planner cannot use to scan all memories of a user instead.
        SELECT m.id, m.length, m.terms,
               NOT v_filters OR {schema}.memory_passes(m, p_agent_id, p_kinds, p_namespace, p_since, p_until) AS passes
          FROM {schema}.memories m
         WHERE m.terms && v_rare
           AND m.app_name IS NOT DISTINCT FROM p_app_name AND m.user_id IS NOT DISTINCT FROM p_user_id
        UNION ALL
        SELECT m.id, m.length, m.terms, true
          FROM {schema}.memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_others) AND NOT m.terms && v_rare
    ), hits AS MATERIALIZED (
        SELECT wanted.key, wanted.times, wanted.is_identifier, wanted.estimate, matching.id, matching.length,
               matching.passes, cardinality(array_positions(matching.terms, wanted.key)) AS frequency
          FROM matching, wanted
         WHERE matching.terms @> ARRAY[wanted.key]
    ), words AS (
        SELECT key, ln(1 + (v_memories - least(v_memories, found) + 0.5) / (found + 0.5)) AS weight
          FROM (SELECT key, coalesce(max(estimate), count(*)) AS found FROM hits GROUP BY key) counted
    )
    SELECT hits.id,
           sum(times * weight * frequency * 1.9 / (frequency + 0.9 * (0.6 + 0.4 * length / v_length))),
           max(power(least(weight / ln(1 + (v_memories - 0.5) / 1.5), 1), 8) * CASE WHEN is_identifier THEN 2 ELSE 1 END)
      FROM hits JOIN words USING (key)
     WHERE passes
     GROUP BY hits.id ORDER BY 2 DESC, 1 DESC LIMIT p_limit;
END
$$;
