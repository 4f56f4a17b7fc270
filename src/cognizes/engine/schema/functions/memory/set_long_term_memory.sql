-- Set a key of an agent's long-term memory, and its text for recall. An empty text excludes it from recall.
CREATE OR REPLACE FUNCTION {schema}.set_long_term_memory(
    p_app_name text, p_user_id text, p_agent_id text, p_namespace text, p_key text, p_value jsonb, p_text text,
    p_words text, p_embed boolean, OUT created_at timestamptz, OUT updated_at timestamptz
) LANGUAGE plpgsql AS $$
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    INSERT INTO {schema}.agent_long_term_memory AS l (app_name, user_id, agent_id, namespace, key, value, text)
    VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text)
    ON CONFLICT (app_name, user_id, agent_id, md5(namespace), md5(key))
       DO UPDATE SET value = excluded.value, text = excluded.text, updated_at = excluded.updated_at
    RETURNING l.created_at, l.updated_at INTO created_at, updated_at;
    IF p_text = '' THEN
        DELETE FROM {schema}.memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.kind = 'long_term' AND m.agent_id = p_agent_id
           AND md5(coalesce(m.session_id, '')) = md5('') AND md5(m.source_id) = md5(p_namespace || chr(1) || p_key);
    ELSE
        PERFORM {schema}.store_memories(
            p_app_name, p_user_id, 'long_term', ARRAY[p_agent_id], ARRAY[p_namespace],
            ARRAY[p_namespace || chr(1) || p_key], ARRAY[NULL::text], ARRAY[0::bigint], ARRAY[NULL::text],
            ARRAY[p_text], ARRAY[p_words], ARRAY[NULL::text], ARRAY[updated_at], p_embed);
    END IF;
END
$$;
