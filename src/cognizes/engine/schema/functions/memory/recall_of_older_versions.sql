-- Recall with the arguments of engines before the filters by tags and metadata: nodes of the older version call these
-- during an upgrade. They can be removed one version later.
CREATE OR REPLACE FUNCTION {schema}.recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer, p_exact boolean
) RETURNS TABLE (
    id bigint, bm25 double precision, share double precision, rarity double precision, matched integer[],
    weights double precision[]
) LANGUAGE sql STABLE AS $$
    SELECT * FROM {schema}.recall_by_words(
        p_app_name, p_user_id, p_words, p_identifiers,
        {schema}.older_memory_filter(p_agent_id, p_kinds, p_namespace, p_since, p_until), p_limit, p_exact, NULL)
$$;

CREATE OR REPLACE FUNCTION {schema}.recall_by_vector(
    p_app_name text, p_user_id text, p_model text, p_dimension integer, p_query text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer, p_exact boolean, p_ids bigint[]
) RETURNS TABLE (id bigint, cosine double precision) LANGUAGE sql STABLE AS $$
    SELECT * FROM {schema}.recall_by_vector(
        p_app_name, p_user_id, p_model, p_dimension, p_query,
        {schema}.older_memory_filter(p_agent_id, p_kinds, p_namespace, p_since, p_until), p_limit, p_exact, NULL, p_ids)
$$;

CREATE OR REPLACE FUNCTION {schema}.memory_neighbours(
    p_app_name text, p_user_id text, p_agent_id text, p_kinds text[], p_namespace text, p_since timestamptz,
    p_until timestamptz, p_ids bigint[]
) RETURNS TABLE (origin bigint, session_id text, id bigint, distance bigint, author text, length integer)
LANGUAGE sql STABLE AS $$
    SELECT origin, session_id, id, distance, author, length
      FROM {schema}.memory_neighbours(
               p_app_name, p_user_id,
               {schema}.older_memory_filter(p_agent_id, p_kinds, p_namespace, p_since, p_until), p_ids)
$$;

CREATE OR REPLACE FUNCTION {schema}.older_memory_filter(
    p_agent_id text, p_kinds text[], p_namespace text, p_since timestamptz, p_until timestamptz
) RETURNS {schema}.memory_filter LANGUAGE sql STABLE AS $$
    SELECT jsonb_populate_record(
        NULL::{schema}.memory_filter,
        jsonb_build_object('agent_id', p_agent_id, 'kinds', p_kinds, 'namespace', p_namespace, 'since', p_since,
                           'until', p_until))
$$;
