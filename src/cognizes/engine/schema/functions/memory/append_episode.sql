-- Append an episode and its text for recall, once per id. Returns false if it exists. SQLSTATE CZ404: its session was
-- deleted.
CREATE OR REPLACE FUNCTION {schema}.append_episode(
    p_app_name text, p_user_id text, p_agent_id text, p_id text, p_session_id text, p_run_id text, p_summary text,
    p_payload jsonb, p_created_at timestamptz, p_text text, p_words text, p_embed boolean, p_sources jsonb DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    IF p_session_id IS NOT NULL AND {schema}.is_deleted_session(p_app_name, p_user_id, p_session_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('session %s was deleted', left(p_session_id, 200));
    END IF;
    INSERT INTO {schema}.agent_episodic_chunks (app_name, user_id, agent_id, id, session_id, job_id, summary, payload,
                                                created_at)
    VALUES (p_app_name, p_user_id, p_agent_id, p_id, p_session_id, p_run_id, p_summary, p_payload, p_created_at)
    ON CONFLICT (app_name, user_id, md5(id)) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_text <> '' THEN
        PERFORM {schema}.store_memories(
            p_app_name, p_user_id, 'episodic', ARRAY[p_agent_id], ARRAY[''], ARRAY[p_id], ARRAY[p_session_id],
            ARRAY[(extract(epoch FROM p_created_at) * 1000000)::bigint], ARRAY[NULL::text], ARRAY[p_text],
            ARRAY[p_words], ARRAY[NULL::text], ARRAY[p_created_at], p_embed,
            ARRAY[jsonb_build_object('sources', coalesce(p_sources, '[]'))::text]);
    END IF;
    RETURN true;
END
$$;
