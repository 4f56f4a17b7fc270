-- Return whether a message matches the filters of a search; a null filter matches everything.
CREATE OR REPLACE FUNCTION {schema}.message_passes(
    m {schema}.messages, p_thread_id uuid, p_roles text[], p_since timestamptz, p_until timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (p_thread_id IS NULL OR m.thread_id = p_thread_id) AND (p_roles IS NULL OR m.role = ANY (p_roles))
       AND (p_since IS NULL OR m.created_at >= p_since) AND (p_until IS NULL OR m.created_at < p_until)
$$;
