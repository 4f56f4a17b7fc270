-- Returns a session for ADK: one row with its head and states, then its conversation, newest event first.
-- Of the thread p_known_thread only the events after p_known_sequence. With p_from_time only events from that time on, with
-- p_limit at most that many; with p_with_last_time also the time of the last event, even if that event is not returned.
-- Of a thread that has branches or removed events, all events of the active branch: the known events may not belong to it.
-- The id of the head's row is 'branched' then.
-- STABLE: all statements use one snapshot. The generic plan saves the planning, which takes longer than the reading.
CREATE OR REPLACE FUNCTION {schema}.adk_read_session(
    p_app_name text,
    p_user_id text,
    p_session_id text,
    p_known_thread uuid,
    p_known_sequence bigint,
    p_from_time double precision,
    p_limit bigint,
    p_with_last_time boolean
) RETURNS TABLE (
    thread_id uuid, version bigint, last_sequence bigint, thread_created_at timestamptz, state text, user_state text,
    app_state text, last_event_time double precision,
    sequence_num bigint, id text, invocation_id text, author text, event_type text, content text, actions text,
    created_at timestamptz
) LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    SELECT t.id, t.version, t.last_sequence, t.created_at, t.state::text,
           (SELECT u.state::text FROM {schema}.user_states u WHERE u.user_id = t.user_id AND u.app_name = t.app_name),
           (SELECT a.state::text FROM {schema}.app_states a WHERE a.app_name = t.app_name)
      INTO thread_id, version, last_sequence, thread_created_at, state, user_state, app_state
      FROM {schema}.threads t
     WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
       AND t.session_id = p_session_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_with_last_time THEN
        SELECT {schema}.adk_event_time(e.content::text, e.created_at) INTO last_event_time
          FROM {schema}.events e
         WHERE e.thread_id = adk_read_session.thread_id
           AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
         ORDER BY e.sequence_num DESC LIMIT 1;
    END IF;
    IF EXISTS (SELECT FROM {schema}.branch_segments s WHERE s.thread_id = adk_read_session.thread_id)
       OR EXISTS (SELECT FROM {schema}.hidden_events h WHERE h.thread_id = adk_read_session.thread_id) THEN
        id := 'branched';
        RETURN NEXT;
        RETURN QUERY
            SELECT NULL::uuid, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::text, NULL::text, NULL::text,
                   NULL::double precision, e.sequence_num, e.id, e.invocation_id, e.author, e.event_type,
                   e.content::text, e.actions::text, e.created_at
              FROM {schema}.branch_path(adk_read_session.thread_id, NULL) AS path
              JOIN {schema}.events e ON e.thread_id = adk_read_session.thread_id
               AND e.sequence_num BETWEEN path.first_sequence AND path.last_sequence
             WHERE {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
               AND (p_from_time IS NULL OR {schema}.adk_event_time(e.content::text, e.created_at) >= p_from_time)
             ORDER BY e.sequence_num DESC
             LIMIT p_limit;
        RETURN;
    END IF;
    RETURN NEXT;
    RETURN QUERY
        SELECT NULL::uuid, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::text, NULL::text, NULL::text,
               NULL::double precision, e.sequence_num, e.id, e.invocation_id, e.author, e.event_type, e.content::text,
               e.actions::text, e.created_at
          FROM {schema}.events e
         WHERE e.thread_id = adk_read_session.thread_id
           AND e.sequence_num > CASE WHEN adk_read_session.thread_id = p_known_thread
                                     THEN p_known_sequence ELSE 0 END
           AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
           AND (p_from_time IS NULL OR {schema}.adk_event_time(e.content::text, e.created_at) >= p_from_time)
         ORDER BY e.sequence_num DESC
         LIMIT p_limit;
END
$$;
