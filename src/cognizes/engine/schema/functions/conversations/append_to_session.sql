-- Appends events to one session. Engines before `append_to_sessions` call this during an upgrade; it can be removed one version
-- later. The rules and statuses are those of `append_events`.
CREATE OR REPLACE FUNCTION {schema}.append_to_session(
    p_app_name text, p_user_id text, p_session_id text, p_thread_id uuid,
    p_event_ids text[], p_authors text[], p_event_types text[], p_contents text[], p_roles text[], p_texts text[],
    p_message_ids text[], p_run_id text, p_may_be_resent boolean, p_fence_run_id text, p_fence_attempt integer,
    p_notify boolean DEFAULT true, p_wait boolean DEFAULT true,
    OUT status text, OUT thread_id uuid, OUT sequence_nums bigint[], OUT created_ats timestamptz[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_count CONSTANT integer := cardinality(p_event_ids);
BEGIN
    -- Again, if the session is deleted between the two statements.
    FOR attempt IN 1 .. 3 LOOP
        thread_id := {schema}.find_or_create_session(p_app_name, p_user_id, p_session_id, p_thread_id);
        SELECT min(answer.status), array_agg(answer.sequence_num ORDER BY answer.place),
               array_agg(answer.created_at ORDER BY answer.place)
          INTO status, sequence_nums, created_ats
          FROM {schema}.append_events(
            ARRAY[append_to_session.thread_id], array_fill(1, ARRAY[v_count]), p_event_ids,
            array_fill(p_run_id, ARRAY[v_count]), array_fill(''::text, ARRAY[v_count]), p_authors, p_event_types,
            p_contents, array_fill('{}'::text, ARRAY[v_count]), NULL, NULL, NULL, NULL, p_roles, p_texts,
            p_message_ids, array_fill(p_may_be_resent, ARRAY[v_count]), p_wait, 0, 0,
            p_fence_run_ids => array_fill(p_fence_run_id, ARRAY[v_count]),
            p_fence_attempts => array_fill(p_fence_attempt, ARRAY[v_count]), p_notify => p_notify)
          WITH ORDINALITY AS answer (status, sequence_num, version, created_at, place);
        EXIT WHEN status <> 'missing';
    END LOOP;
END
$$;

-- Returns the thread of a session; creates it, under p_thread_id, if there is none.
CREATE OR REPLACE FUNCTION {schema}.find_or_create_session(
    p_app_name text, p_user_id text, p_session_id text, p_thread_id uuid
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_found uuid;
BEGIN
    SELECT id INTO v_found FROM {schema}.threads
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(session_id) = md5(p_session_id)
       AND session_id = p_session_id;
    IF NOT FOUND THEN
        SELECT created.thread_id INTO v_found
          FROM {schema}.create_sessions(
            ARRAY[p_thread_id], ARRAY[p_app_name], ARRAY[p_user_id], ARRAY[p_session_id], ARRAY[NULL]::text[],
            ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY[NULL]::text[], 2147483647) AS created;
    END IF;
    RETURN v_found;
END
$$;
