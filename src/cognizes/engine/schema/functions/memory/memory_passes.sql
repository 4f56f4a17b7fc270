-- Return whether a memory is recalled at all and matches the filters of a recall; a null filter matches everything.
CREATE OR REPLACE FUNCTION {schema}.memory_passes(m {schema}.memories, p_filter {schema}.memory_filter) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT m.duplicate_of IS NULL AND (m.expires_at IS NULL OR m.expires_at > now())
       AND ((p_filter).agent_id IS NULL OR m.agent_id = (p_filter).agent_id)
       AND ((p_filter).kinds IS NULL OR m.kind = ANY ((p_filter).kinds))
       AND ((p_filter).namespace IS NULL OR m.namespace = (p_filter).namespace)
       AND ((p_filter).since IS NULL OR m.created_at >= (p_filter).since)
       AND ((p_filter).until IS NULL OR m.created_at < (p_filter).until)
       AND ((p_filter).tags IS NULL OR m.tags @> (p_filter).tags)
       AND ((p_filter).metadata IS NULL OR m.metadata @> (p_filter).metadata)
       AND ((p_filter).ranges IS NULL OR m.metadata @@ (p_filter).ranges)
$$;
