-- The best memories of a user by BM25 (k1 0.9, b 0.4: for short texts). How rare a word is, is counted over all of the
-- user's memories; the filters only choose among them. `rarity` is 1 when the memory holds a word of the query that no
-- other memory has, and falls quickly; of an identifier it counts twice.
CREATE OR REPLACE FUNCTION {schema}.recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer
) RETURNS TABLE (id bigint, bm25 double precision, rarity double precision)
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_keys bigint[] := {schema}.memory_term_keys(p_app_name, p_user_id, p_words);
    v_identifiers bigint[] := {schema}.memory_term_keys(p_app_name, p_user_id, p_identifiers);
    v_filters boolean := coalesce(p_agent_id, p_namespace, p_kinds::text, p_since::text, p_until::text) IS NOT NULL;
    v_memories double precision;
    v_length double precision;
BEGIN
    SELECT s.memories, greatest(s.total_length::double precision / nullif(s.memories, 0), 1) INTO v_memories, v_length
      FROM {schema}.memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    RETURN QUERY
    WITH wanted AS (
        SELECT key, count(*) AS times, key = ANY (v_identifiers) AS is_identifier FROM unnest(v_keys) AS key GROUP BY key
    ), hits AS MATERIALIZED (
        -- The key stands for the user already. Saying so again keeps users apart whatever happens, in words that the
        -- planner cannot use to read all memories of a user instead.
        SELECT wanted.key, wanted.times, wanted.is_identifier, m.id, m.length,
               cardinality(array_positions(m.terms, wanted.key)) AS frequency,
               NOT v_filters OR {schema}.memory_passes(m, p_agent_id, p_kinds, p_namespace, p_since, p_until) AS passes
          FROM wanted JOIN {schema}.memories m ON m.terms @> ARRAY[wanted.key]
         WHERE m.app_name IS NOT DISTINCT FROM p_app_name AND m.user_id IS NOT DISTINCT FROM p_user_id
    ), words AS (
        SELECT key, ln(1 + (greatest(v_memories, count(*)) - count(*) + 0.5) / (count(*) + 0.5)) AS weight
          FROM hits GROUP BY key
    )
    SELECT hits.id,
           sum(times * weight * frequency * 1.9 / (frequency + 0.9 * (0.6 + 0.4 * length / v_length))),
           max(power(least(weight / ln(1 + (v_memories - 0.5) / 1.5), 1), 8) * CASE WHEN is_identifier THEN 2 ELSE 1 END)
      FROM hits JOIN words USING (key)
     WHERE passes
     GROUP BY hits.id ORDER BY 2 DESC, 1 DESC LIMIT p_limit;
END
$$;
