-- Creates a session with the past of another one up to an event: copies of its events, messages and versions. Without
-- p_state the state is the present one of the source. Returns null if the thread does not exist.
CREATE OR REPLACE FUNCTION {schema}.fork_session(
    p_source uuid, p_thread_id uuid, p_session_id text, p_at_sequence bigint, p_state jsonb, p_version bigint,
    OUT status text, OUT thread_id uuid
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_source record;
BEGIN
    SELECT * INTO v_source FROM {schema}.threads WHERE id = p_source FOR SHARE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    INSERT INTO {schema}.threads (id, app_name, user_id, session_id, title, metadata, state, version, last_sequence,
                                  is_as_created, began_at, began_number)
    VALUES (p_thread_id, v_source.app_name, v_source.user_id, p_session_id, v_source.title,
            v_source.metadata || jsonb_build_object('forked_from', p_source, 'forked_at',
                                                    coalesce(p_at_sequence, v_source.last_sequence)),
            coalesce(p_state, v_source.state), coalesce(p_version, v_source.version),
            coalesce(p_at_sequence, v_source.last_sequence), v_source.is_as_created, v_source.began_at,
            v_source.began_number)
    ON CONFLICT (app_name, user_id, md5(session_id)) DO NOTHING
    RETURNING id INTO fork_session.thread_id;
    IF NOT FOUND THEN
        status := 'exists';
        RETURN;
    END IF;
    INSERT INTO {schema}.events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at, write_number)
    SELECT p_thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type, content, actions,
           version, changes_state, created_at, write_number
      FROM {schema}.events
     WHERE thread_id = p_source AND sequence_num <= coalesce(p_at_sequence, v_source.last_sequence);
    INSERT INTO {schema}.messages (thread_id, sequence_num, id, event_id, app_name, role, content, metadata,
                                   created_at)
    SELECT p_thread_id, sequence_num, id, event_id, app_name, role, content, metadata, created_at
      FROM {schema}.messages
     WHERE thread_id = p_source AND sequence_num <= coalesce(p_at_sequence, v_source.last_sequence);
    INSERT INTO {schema}.snapshots (thread_id, version, sequence_num, app_name, state, events_summary, created_at)
    SELECT p_thread_id, version, sequence_num, app_name, state, events_summary, created_at
      FROM {schema}.snapshots
     WHERE thread_id = p_source AND sequence_num <= coalesce(p_at_sequence, v_source.last_sequence);
    INSERT INTO {schema}.branches (thread_id, number, app_name, name, parent, forked_at, created_at, deleted_at,
                                   write_number)
    SELECT p_thread_id, b.number, b.app_name, b.name, b.parent, b.forked_at, b.created_at, b.deleted_at, b.write_number
      FROM {schema}.branches b
     WHERE b.thread_id = p_source
       AND (p_at_sequence IS NULL
            OR (SELECT {schema}.is_written_by(b.write_number, b.created_at, e.write_number, e.created_at)
                  FROM {schema}.events e WHERE e.thread_id = p_source AND e.sequence_num = p_at_sequence));
    INSERT INTO {schema}.branch_segments (thread_id, from_sequence, app_name, branch)
    SELECT p_thread_id, from_sequence, app_name, branch
      FROM {schema}.branch_segments
     WHERE thread_id = p_source AND from_sequence <= coalesce(p_at_sequence, v_source.last_sequence);
    -- The fork has the artifacts of its past and shares their bytes, unless these are being deleted.
    INSERT INTO {schema}.artifacts (id, app_name, user_id, session_id, filename, version, blob_id, mime_type, size, sha256,
                                    metadata, attributes, created_at)
    SELECT gen_random_uuid(), a.app_name, a.user_id, p_session_id, a.filename, a.version, a.blob_id, a.mime_type, a.size,
           a.sha256, a.metadata, a.attributes, a.created_at
      FROM {schema}.artifacts a
      JOIN {schema}.artifact_blobs b ON b.id = a.blob_id AND b.delete_after IS NULL
     WHERE a.app_name = v_source.app_name AND a.user_id = v_source.user_id
       AND md5(coalesce(a.session_id, '')) = md5(v_source.session_id) AND a.session_id = v_source.session_id
       AND (p_at_sequence IS NULL
            OR a.created_at <= (SELECT e.created_at FROM {schema}.events e
                                 WHERE e.thread_id = p_source AND e.sequence_num = p_at_sequence))
       FOR SHARE OF b;
    INSERT INTO {schema}.hidden_events (thread_id, branch, write_number, app_name, first_sequence, last_sequence)
    SELECT p_thread_id, h.branch, h.write_number, h.app_name, h.first_sequence, h.last_sequence
      FROM {schema}.hidden_events h
     WHERE h.thread_id = p_source
       AND (p_at_sequence IS NULL
            OR h.write_number < (SELECT e.write_number FROM {schema}.events e
                                  WHERE e.thread_id = p_source AND e.sequence_num = p_at_sequence));
    status := 'created';
END
$$;
