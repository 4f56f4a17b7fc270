-- Delete a key and its history, also from recall. Returns whether it existed.
CREATE OR REPLACE FUNCTION {schema}.delete_long_term_memory(
    p_app_name text, p_user_id text, p_agent_id text, p_namespace text, p_key text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_found boolean;
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    DELETE FROM {schema}.agent_long_term_memory
     WHERE app_name = p_app_name AND user_id = p_user_id AND agent_id = p_agent_id
       AND md5(namespace) = md5(p_namespace) AND md5(key) = md5(p_key);
    v_found := FOUND;
    DELETE FROM {schema}.agent_long_term_history
     WHERE app_name = p_app_name AND user_id = p_user_id AND agent_id = p_agent_id
       AND md5(namespace) = md5(p_namespace) AND md5(key) = md5(p_key);
    DELETE FROM {schema}.memories
     WHERE app_name = p_app_name AND user_id = p_user_id AND kind = 'long_term' AND agent_id = p_agent_id
       AND md5(coalesce(session_id, '')) = md5('') AND md5(source_id) = md5(p_namespace || chr(1) || p_key);
    RETURN v_found;
END
$$;
