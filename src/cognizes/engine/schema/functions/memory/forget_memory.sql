-- Delete a memory and its fact or episode. A forgotten message is recorded, so that storing its session again does not
-- restore it. Returns whether the memory existed.
CREATE OR REPLACE FUNCTION {schema}.forget_memory(p_app_name text, p_user_id text, p_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_gone {schema}.memories;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    DELETE FROM {schema}.memories WHERE app_name = p_app_name AND user_id = p_user_id AND id = p_id
    RETURNING * INTO v_gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    CASE v_gone.kind
        WHEN 'long_term' THEN
            DELETE FROM {schema}.agent_long_term_memory
             WHERE app_name = p_app_name AND user_id = p_user_id AND agent_id = v_gone.agent_id
               AND md5(namespace) = md5(v_gone.namespace)
               AND md5(key) = md5(substr(v_gone.source_id, length(v_gone.namespace) + 2));
        WHEN 'episodic' THEN
            DELETE FROM {schema}.agent_episodic_chunks
             WHERE app_name = p_app_name AND user_id = p_user_id AND md5(id) = md5(v_gone.source_id);
        WHEN 'turn' THEN
            INSERT INTO {schema}.memory_deletions (app_name, user_id, source)
            VALUES (p_app_name, p_user_id,
                    md5(concat_ws(chr(1), v_gone.agent_id, coalesce(v_gone.session_id, ''), v_gone.source_id)))
            ON CONFLICT DO NOTHING;
        ELSE NULL;
    END CASE;
    RETURN true;
END
$$;
