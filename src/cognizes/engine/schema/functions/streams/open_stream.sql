-- Open a stream for a new message. The status is one of:
--   opened   the stream is open; a process that retries because the first response was lost gets this too
--   taken    a stream, a message or an event of this id exists
--   missing  the thread does not exist
CREATE OR REPLACE FUNCTION {schema}.open_stream(
    p_thread_id uuid, p_message_id text, p_role text, p_author text, p_run_id text, p_invocation_id text, p_owner uuid,
    p_lease interval, OUT status text, OUT app_name text, OUT began_after bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- KEY SHARE keeps the thread from being deleted and does not block appends.
    SELECT t.app_name, t.last_sequence INTO app_name, began_after
      FROM {schema}.threads t WHERE t.id = p_thread_id FOR KEY SHARE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM {schema}.messages WHERE thread_id = p_thread_id AND md5(id) = md5(p_message_id))
       OR EXISTS (SELECT FROM {schema}.events WHERE thread_id = p_thread_id AND md5(id) = md5(p_message_id)) THEN
        status := 'taken';
        RETURN;
    END IF;
    INSERT INTO {schema}.message_streams (thread_id, message_id, app_name, role, author, run_id, invocation_id, owner,
                                          lease_expires_at, began_after)
    VALUES (p_thread_id, p_message_id, open_stream.app_name, p_role, p_author, p_run_id, p_invocation_id, p_owner,
            clock_timestamp() + p_lease, open_stream.began_after)
    ON CONFLICT (thread_id, md5(message_id)) DO NOTHING;
    IF NOT FOUND THEN
        status := CASE WHEN EXISTS (
            SELECT FROM {schema}.message_streams s
             WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) AND s.message_id = p_message_id
               AND s.owner = p_owner AND s.status = 'streaming'
        ) THEN 'opened' ELSE 'taken' END;
        RETURN;
    END IF;
    PERFORM {schema}.notify_stream(p_thread_id, p_message_id, 0, 'streaming');
    status := 'opened';
END
$$;
