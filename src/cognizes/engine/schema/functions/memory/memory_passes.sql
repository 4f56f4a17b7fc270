-- Return whether a memory matches the filters of a recall; a null filter matches everything.
CREATE OR REPLACE FUNCTION {schema}.memory_passes(
    m {schema}.memories, p_agent_id text, p_kinds text[], p_namespace text, p_since timestamptz, p_until timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (p_agent_id IS NULL OR m.agent_id = p_agent_id) AND (p_kinds IS NULL OR m.kind = ANY (p_kinds))
       AND (p_namespace IS NULL OR m.namespace = p_namespace)
       AND (p_since IS NULL OR m.created_at >= p_since) AND (p_until IS NULL OR m.created_at < p_until)
$$;
