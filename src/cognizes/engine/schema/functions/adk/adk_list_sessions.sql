-- Returns the sessions of a user (null: of all users of the app), each with the time of its last event, without an order.
-- Before them are rows without a thread: the states of the app (without a user) and of the users, once each, because they
-- may be large.
CREATE OR REPLACE FUNCTION {schema}.adk_list_sessions(p_app_name text, p_user_id text) RETURNS TABLE (
    thread_id uuid, session_id text, user_id text, version bigint, last_sequence bigint,
    last_update_time double precision, state text
) LANGUAGE plpgsql STABLE
-- The plan is the same for every user: it must suit a user with a hundred of a hundred thousand sessions.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT NULL::uuid, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::double precision, a.state::text
          FROM {schema}.app_states a WHERE a.app_name = p_app_name;
    RETURN QUERY
        SELECT NULL::uuid, NULL::text, u.user_id, NULL::bigint, NULL::bigint, NULL::double precision, u.state::text
          FROM {schema}.user_states u
         WHERE u.app_name = p_app_name
           AND u.user_id IN (SELECT p_user_id WHERE p_user_id IS NOT NULL
                             UNION
                             SELECT t.user_id FROM {schema}.threads t
                              WHERE t.app_name = p_app_name AND p_user_id IS NULL);
    -- Two arms: one condition for both cases could not use the index of the user, and would read all sessions of the app.
    RETURN QUERY
        SELECT t.id, t.session_id, t.user_id, t.version, t.last_sequence,
               coalesce(CASE WHEN t.last_sequence > 0 THEN
                             (SELECT {schema}.adk_event_time(e.content::text, e.created_at)
                                FROM {schema}.events e
                               WHERE e.thread_id = t.id
                                 AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
                               ORDER BY e.sequence_num DESC LIMIT 1) END,
                        extract(epoch FROM t.created_at)::double precision),
               t.state::text
          FROM (SELECT * FROM {schema}.threads
                 WHERE app_name = p_app_name AND user_id = p_user_id
                UNION ALL
                SELECT * FROM {schema}.threads WHERE p_user_id IS NULL AND app_name = p_app_name) t;
END
$$;
