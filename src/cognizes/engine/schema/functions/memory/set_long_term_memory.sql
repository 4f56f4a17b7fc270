-- Set a key of an agent's long-term memory, and its text for recall. An empty text excludes it from recall. The newer value of
-- a key replaces the older one by the times of the values (p_at, by default now), whatever the order of the calls. With
-- p_keep_history the replaced value goes to `agent_long_term_history`. Returns the fact that is current afterwards.
CREATE OR REPLACE FUNCTION {schema}.set_long_term_memory(
    p_app_name text, p_user_id text, p_agent_id text, p_namespace text, p_key text, p_value jsonb, p_text text,
    p_words text, p_embed boolean, p_at timestamptz DEFAULT NULL, p_sources jsonb DEFAULT NULL,
    p_keep_history boolean DEFAULT true
) RETURNS SETOF {schema}.agent_long_term_memory LANGUAGE plpgsql AS $$
DECLARE
    v_old {schema}.agent_long_term_memory;
    v_at timestamptz := coalesce(p_at, clock_timestamp());
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    SELECT * INTO v_old FROM {schema}.agent_long_term_memory l
     WHERE l.app_name = p_app_name AND l.user_id = p_user_id AND l.agent_id = p_agent_id
       AND md5(l.namespace) = md5(p_namespace) AND md5(l.key) = md5(p_key);
    IF FOUND AND p_at IS NOT NULL AND v_old.updated_at > p_at THEN
        IF p_keep_history AND v_old.value IS DISTINCT FROM p_value THEN
            UPDATE {schema}.agent_long_term_history h SET valid_until = p_at
             WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
               AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key)
               AND h.valid_from < p_at AND h.valid_until > p_at;
            INSERT INTO {schema}.agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                          valid_from, valid_until)
            SELECT p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text, p_sources, p_at,
                   coalesce(min(h.valid_from) FILTER (WHERE h.valid_from > p_at), v_old.updated_at)
              FROM {schema}.agent_long_term_history h
             WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
               AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key)
            HAVING count(*) FILTER (WHERE h.valid_from = p_at AND h.value = p_value) = 0;
        END IF;
        RETURN NEXT v_old;
        RETURN;
    END IF;
    IF FOUND AND p_keep_history AND v_old.value IS DISTINCT FROM p_value THEN
        INSERT INTO {schema}.agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                      valid_from, valid_until)
        VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, v_old.value, v_old.text, v_old.sources,
                v_old.updated_at, v_at);
    END IF;
    INSERT INTO {schema}.agent_long_term_memory AS l (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                      created_at, updated_at)
    VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text, p_sources, v_at, v_at)
    ON CONFLICT (app_name, user_id, agent_id, md5(namespace), md5(key))
       DO UPDATE SET value = excluded.value, text = excluded.text, sources = excluded.sources,
                     updated_at = excluded.updated_at
    RETURNING * INTO v_old;
    IF p_text = '' THEN
        DELETE FROM {schema}.memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.kind = 'long_term' AND m.agent_id = p_agent_id
           AND md5(coalesce(m.session_id, '')) = md5('') AND md5(m.source_id) = md5(p_namespace || chr(1) || p_key);
    ELSE
        PERFORM {schema}.store_memories(
            p_app_name, p_user_id, 'long_term', ARRAY[p_agent_id], ARRAY[p_namespace],
            ARRAY[p_namespace || chr(1) || p_key], ARRAY[NULL::text], ARRAY[0::bigint], ARRAY[NULL::text],
            ARRAY[p_text], ARRAY[p_words], ARRAY[NULL::text], ARRAY[v_old.updated_at], p_embed,
            ARRAY[jsonb_build_object('sources', coalesce(p_sources, '[]'))::text]);
    END IF;
    RETURN NEXT v_old;
END
$$;
