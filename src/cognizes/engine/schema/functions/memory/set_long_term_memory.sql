-- Set a key of an agent's long-term memory, and its text for recall. An empty text excludes it from recall. The newer value of
-- a key replaces the older one by the times of the values (p_at, by default now), whatever the order of the calls. A value is
-- valid from `valid_from`; `updated_at` is its last confirmation. With p_keep_history the replaced value goes to
-- `agent_long_term_history`. Returns the fact that is current afterwards.
CREATE OR REPLACE FUNCTION {schema}.set_long_term_memory(
    p_app_name text, p_user_id text, p_agent_id text, p_namespace text, p_key text, p_value jsonb, p_text text,
    p_words text, p_embed boolean, p_at timestamptz DEFAULT NULL, p_sources jsonb DEFAULT NULL,
    p_keep_history boolean DEFAULT true
) RETURNS SETOF {schema}.agent_long_term_memory LANGUAGE plpgsql AS $$
DECLARE
    v_old {schema}.agent_long_term_memory;
    v_at timestamptz := coalesce(p_at, clock_timestamp());
    v_is_equal boolean;
    v_next timestamptz;
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    SELECT * INTO v_old FROM {schema}.agent_long_term_memory l
     WHERE l.app_name = p_app_name AND l.user_id = p_user_id AND l.agent_id = p_agent_id
       AND md5(l.namespace) = md5(p_namespace) AND md5(l.key) = md5(p_key);
    v_old.valid_from := coalesce(v_old.valid_from, v_old.updated_at);
    v_is_equal := v_old.value IS NOT DISTINCT FROM p_value;
    IF v_old.updated_at > p_at THEN
        IF v_is_equal AND p_at >= v_old.valid_from OR NOT p_keep_history THEN
            RETURN NEXT v_old;
            RETURN;
        END IF;
        SELECT min(h.valid_from) INTO v_next FROM {schema}.agent_long_term_history h
         WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
           AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key) AND h.valid_from > p_at;
        UPDATE {schema}.agent_long_term_history h SET valid_until = p_at
         WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
           AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key)
           AND h.valid_from < p_at AND h.valid_until > p_at AND h.value <> p_value;
        IF v_is_equal AND v_next IS NULL THEN
            -- The current value was valid earlier than known.
            v_old.valid_from := p_at;
        ELSE
            IF p_at > v_old.valid_from THEN
                -- Another value between two statements of the current one.
                INSERT INTO {schema}.agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                              valid_from, valid_until)
                VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, v_old.value, v_old.text, v_old.sources,
                        v_old.valid_from, p_at);
            END IF;
            IF p_at >= v_old.valid_from THEN
                v_old.valid_from := v_old.updated_at;
            END IF;
            INSERT INTO {schema}.agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                          valid_from, valid_until)
            SELECT p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text, p_sources, p_at,
                   coalesce(v_next, v_old.valid_from)
             WHERE NOT EXISTS (
                   SELECT FROM {schema}.agent_long_term_history h
                    WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
                      AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key)
                      AND h.valid_from <= p_at AND h.valid_until > p_at AND h.value = p_value);
        END IF;
        UPDATE {schema}.agent_long_term_memory l SET valid_from = v_old.valid_from
         WHERE l.app_name = p_app_name AND l.user_id = p_user_id AND l.agent_id = p_agent_id
           AND md5(l.namespace) = md5(p_namespace) AND md5(l.key) = md5(p_key);
        RETURN NEXT v_old;
        RETURN;
    END IF;
    -- A value from a time in the future that is replaced before was never valid.
    IF p_keep_history AND NOT v_is_equal AND v_old.valid_from < v_at THEN
        INSERT INTO {schema}.agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                      valid_from, valid_until)
        VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, v_old.value, v_old.text, v_old.sources,
                v_old.valid_from, v_at);
    END IF;
    INSERT INTO {schema}.agent_long_term_memory AS l (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                      created_at, updated_at, valid_from)
    VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text, p_sources, v_at, v_at, v_at)
    ON CONFLICT (app_name, user_id, agent_id, md5(namespace), md5(key))
       DO UPDATE SET value = excluded.value, text = excluded.text, updated_at = excluded.updated_at,
                     valid_from = CASE WHEN v_is_equal THEN least(v_old.valid_from, v_at) ELSE v_at END,
                     sources = CASE WHEN v_is_equal AND l.sources IS NOT NULL THEN (
                                        SELECT jsonb_agg(source ORDER BY place) FROM (
                                            SELECT source, min(place) AS place
                                              FROM jsonb_array_elements(l.sources || coalesce(excluded.sources, '[]'))
                                                   WITH ORDINALITY AS given (source, place)
                                             GROUP BY source) united)
                                    ELSE excluded.sources END
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
            ARRAY[jsonb_build_object('sources', coalesce(v_old.sources, '[]'))::text]);
    END IF;
    RETURN NEXT v_old;
END
$$;
