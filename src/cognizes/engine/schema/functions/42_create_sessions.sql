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
) RETURNS TABLE (status text, thread_id uuid, created_at timestamptz, user_state text, app_state text,
                 user_version bigint, app_version bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_item record;
    v_now timestamptz;
BEGIN
    PERFORM {schema}.lock_scopes(
        ARRAY(SELECT generate_series(1, cardinality(p_thread_ids))), p_app_names, p_user_ids, p_user_deltas,
        p_app_deltas);
    v_now := clock_timestamp();

    FOR v_item IN
        SELECT * FROM unnest(
            p_thread_ids, p_app_names, p_user_ids, p_session_ids, p_titles, p_metadata, p_states, p_user_deltas,
            p_app_deltas
        ) AS item (thread_id, app_name, user_id, session_id, title, metadata, state, user_delta, app_delta)
    LOOP
        status := 'created';
        thread_id := v_item.thread_id;
        v_now := v_now + interval '1 microsecond';
        INSERT INTO {schema}.threads AS t (id, app_name, user_id, session_id, title, metadata, state, began_at,
                                           created_at, updated_at)
        VALUES (v_item.thread_id, v_item.app_name, v_item.user_id, v_item.session_id, v_item.title,
                v_item.metadata::jsonb, coalesce(v_item.state, '{}')::jsonb, v_now, v_now, v_now)
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
                    v_item.app_name, v_item.user_id, v_item.user_delta::jsonb, thread_id, 0, v_now,
                    p_max_state_bytes);
            END IF;
            IF v_item.app_delta IS NOT NULL THEN
                PERFORM {schema}.merge_app_state(
                    v_item.app_name, v_item.app_delta::jsonb, thread_id, 0, v_now, p_max_state_bytes);
            END IF;
        END IF;
        SELECT s.state::text, s.version INTO user_state, user_version FROM {schema}.user_states s
         WHERE s.user_id = v_item.user_id AND s.app_name = v_item.app_name;
        SELECT s.state::text, s.version INTO app_state, app_version FROM {schema}.app_states s WHERE s.app_name = v_item.app_name;
        RETURN NEXT;
    END LOOP;
END
$$;
