-- Delete an episode, also from recall. Returns whether it existed.
CREATE OR REPLACE FUNCTION {schema}.delete_episode(p_app_name text, p_user_id text, p_id text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_gone record;
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    DELETE FROM {schema}.agent_episodic_chunks
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(id) = md5(p_id)
    RETURNING agent_id, session_id INTO v_gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.memories
     WHERE app_name = p_app_name AND user_id = p_user_id AND kind = 'episodic' AND agent_id = v_gone.agent_id
       AND md5(coalesce(session_id, '')) = md5(coalesce(v_gone.session_id, '')) AND md5(source_id) = md5(p_id);
    RETURN true;
END
$$;
