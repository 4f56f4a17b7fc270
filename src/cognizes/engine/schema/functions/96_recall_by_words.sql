-- The best memories of a user by BM25 (k1 0.9, b 0.4: for short texts). How rare a word is, is counted over all of the
-- user's memories; the filters only choose among them. `rarity` is 1 when the memory holds a word of the query that no
-- other memory has, and falls quickly; of an identifier it counts twice.
-- Of a user with very many memories, those that hold only words found in every fiftieth memory are looked at only if
-- they hold all of them; how often such a word occurs is not counted to the end. With p_exact they are.
CREATE OR REPLACE FUNCTION {schema}.recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer, p_exact boolean
) RETURNS TABLE (id bigint, bm25 double precision, rarity double precision)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET work_mem = '16MB' AS $$
#variable_conflict use_column
DECLARE
    v_keys bigint[] := {schema}.memory_term_keys(p_app_name, p_user_id, p_words);
    v_identifiers bigint[] := {schema}.memory_term_keys(p_app_name, p_user_id, p_identifiers);
    v_filters boolean := coalesce(p_agent_id, p_namespace, p_kinds::text, p_since::text, p_until::text) IS NOT NULL;
    v_memories double precision;
    v_length double precision;
    v_many bigint;
    v_rare bigint[] := '{}';
    v_common bigint[] := '{}';
    v_key bigint;
    v_count bigint;
BEGIN
    SELECT s.memories, greatest(s.total_length::double precision / nullif(s.memories, 0), 1) INTO v_memories, v_length
      FROM {schema}.memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF v_memories IS NULL OR v_memories < 1 THEN
        RETURN;
    END IF;
    IF v_memories > 20000 AND NOT p_exact THEN
        v_many := (v_memories / 50)::bigint;
        FOR v_key IN SELECT DISTINCT key FROM unnest(v_keys) AS key LOOP
            SELECT count(*) INTO v_count
              FROM (SELECT FROM {schema}.memories m WHERE m.terms @> ARRAY[v_key] LIMIT v_many + 1) counted;
            IF v_count > v_many THEN
                v_common := v_common || v_key;
            ELSE
                v_rare := v_rare || v_key;
            END IF;
        END LOOP;
    ELSE
        v_rare := v_keys;
    END IF;
    RETURN QUERY
    WITH wanted AS (
        SELECT key, count(*) AS times, key = ANY (v_identifiers) AS is_identifier, key = ANY (v_common) AS is_common
          FROM unnest(v_keys) AS key GROUP BY key
    ), matching AS MATERIALIZED (
        -- The key stands for the user already. Saying so again keeps users apart whatever happens, in words that the
        -- planner cannot use to read all memories of a user instead.
        SELECT m.id, m.length, m.terms,
               NOT v_filters OR {schema}.memory_passes(m, p_agent_id, p_kinds, p_namespace, p_since, p_until) AS passes
          FROM {schema}.memories m
         WHERE m.terms && v_rare
           AND m.app_name IS NOT DISTINCT FROM p_app_name AND m.user_id IS NOT DISTINCT FROM p_user_id
        UNION ALL
        SELECT m.id, m.length, m.terms,
               NOT v_filters OR {schema}.memory_passes(m, p_agent_id, p_kinds, p_namespace, p_since, p_until) AS passes
          FROM {schema}.memories m
         WHERE v_common <> '{}' AND m.terms @> v_common AND NOT m.terms && v_rare
           AND m.app_name IS NOT DISTINCT FROM p_app_name AND m.user_id IS NOT DISTINCT FROM p_user_id
    ), hits AS MATERIALIZED (
        SELECT wanted.key, wanted.times, wanted.is_identifier, wanted.is_common, matching.id, matching.length,
               matching.passes, cardinality(array_positions(matching.terms, wanted.key)) AS frequency
          FROM matching, wanted
         WHERE matching.terms @> ARRAY[wanted.key]
    ), words AS (
        SELECT key, ln(1 + (v_memories - least(v_memories, found) + 0.5) / (found + 0.5)) AS weight
          FROM (SELECT key, CASE WHEN bool_or(is_common) THEN greatest(count(*), v_many * 2) ELSE count(*) END AS found
                  FROM hits GROUP BY key) counted
    )
    SELECT hits.id,
           sum(times * weight * frequency * 1.9 / (frequency + 0.9 * (0.6 + 0.4 * length / v_length))),
           max(power(least(weight / ln(1 + (v_memories - 0.5) / 1.5), 1), 8) * CASE WHEN is_identifier THEN 2 ELSE 1 END)
      FROM hits JOIN words USING (key)
     WHERE passes
     GROUP BY hits.id ORDER BY 2 DESC, 1 DESC LIMIT p_limit;
END
$$;
