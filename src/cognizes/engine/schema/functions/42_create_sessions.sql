-- Creates a batch of sessions in one transaction; answers per item: `created`, or `exists` where the caller's
-- session id is taken. Deltas of wider scopes are merged into what is there: concurrent creates lose nothing.
CREATE OR REPLACE FUNCTION {schema}.create_sessions(
    p_thread_ids uuid[],
    p_app_names text[],
    p_user_ids text[],
    p_session_ids text[],
    p_titles text[],
    p_metadata text[],
    p_states text[],
    p_user_deltas text[],
    p_app_deltas text[],
    p_max_state_bytes integer
) RETURNS TABLE (status text, thread_id uuid, created_at timestamptz, user_state text, app_state text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_item record;
BEGIN
    -- One order for all locks on wider scopes, so that two batches never wait for each other in a circle.
    PERFORM FROM {schema}.user_states s
      WHERE (s.user_id, s.app_name) IN (
            SELECT item.user_id, item.app_name FROM unnest(p_user_ids, p_app_names, p_user_deltas)
                AS item (user_id, app_name, delta) WHERE item.delta IS NOT NULL)
      ORDER BY s.user_id, s.app_name FOR UPDATE;
    PERFORM FROM {schema}.app_states s
      WHERE s.app_name IN (
            SELECT item.app_name FROM unnest(p_app_names, p_app_deltas) AS item (app_name, delta)
             WHERE item.delta IS NOT NULL)
      ORDER BY s.app_name FOR UPDATE;

    FOR v_item IN
        SELECT * FROM unnest(
            p_thread_ids, p_app_names, p_user_ids, p_session_ids, p_titles, p_metadata, p_states, p_user_deltas,
            p_app_deltas
        ) AS item (thread_id, app_name, user_id, session_id, title, metadata, state, user_delta, app_delta)
    LOOP
        status := 'created';
        thread_id := v_item.thread_id;
        user_state := NULL;
        app_state := NULL;
        INSERT INTO {schema}.threads AS t (id, app_name, user_id, session_id, title, metadata, state)
        VALUES (v_item.thread_id, v_item.app_name, v_item.user_id, v_item.session_id, v_item.title,
                v_item.metadata::jsonb, coalesce(v_item.state, '{}')::jsonb)
        ON CONFLICT (app_name, user_id, md5(session_id)) DO NOTHING
        RETURNING t.created_at INTO created_at;
        IF NOT FOUND THEN
            status := 'exists';
            SELECT t.id, t.created_at INTO thread_id, created_at FROM {schema}.threads t
             WHERE t.app_name = v_item.app_name AND t.user_id = v_item.user_id
               AND md5(t.session_id) = md5(v_item.session_id);
        ELSE
            IF v_item.state IS NOT NULL THEN
                PERFORM {schema}.refuse_large_state(
                    'session', pg_column_size(v_item.state::jsonb), p_max_state_bytes);
                PERFORM {schema}.take_snapshot(thread_id);
            END IF;
            IF v_item.user_delta IS NOT NULL THEN
                PERFORM {schema}.merge_user_state(
                    v_item.app_name, v_item.user_id, v_item.user_delta::jsonb, thread_id, 0, p_max_state_bytes);
            END IF;
            IF v_item.app_delta IS NOT NULL THEN
                PERFORM {schema}.merge_app_state(
                    v_item.app_name, v_item.app_delta::jsonb, thread_id, 0, p_max_state_bytes);
            END IF;
        END IF;
        SELECT s.state::text INTO user_state FROM {schema}.user_states s
         WHERE s.user_id = v_item.user_id AND s.app_name = v_item.app_name;
        SELECT s.state::text INTO app_state FROM {schema}.app_states s WHERE s.app_name = v_item.app_name;
        RETURN NEXT;
    END LOOP;
END
$$;
