-- Open a stream for a new message. The status is one of:
--   opened   the stream is open; a process that retries because the first response was lost gets this too
--   reopened the stream is open; an earlier stream of this id was interrupted before its first chunk
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
    IF FOUND THEN
        status := 'opened';
    ELSIF EXISTS (
        SELECT FROM {schema}.message_streams s
         WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) AND s.message_id = p_message_id
           AND s.owner = p_owner AND s.status = 'streaming'
    ) THEN
        status := 'opened';
        RETURN;
    ELSE
        -- A stream that was interrupted before its first chunk stored nothing. Its former owner can neither end it, nor
        -- extend its lease, nor write chunks, because the row has another owner; this lock waits for the chunks that it
        -- is writing now. A stream that is still open is not taken over, even if its lease has expired: its chunks may
        -- be in Redis.
        PERFORM pg_advisory_xact_lock(hashtextextended('streams', 0));
        UPDATE {schema}.message_streams s
           SET role = p_role, author = p_author, run_id = p_run_id, invocation_id = p_invocation_id, owner = p_owner,
               status = 'streaming', lease_expires_at = clock_timestamp() + p_lease,
               began_after = open_stream.began_after, final_sequence = NULL, chunk_lengths = NULL,
               created_at = clock_timestamp(), ended_at = NULL
         WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) AND s.message_id = p_message_id
           AND s.status = 'interrupted' AND s.final_sequence = 0
           AND NOT EXISTS (SELECT FROM {schema}.message_chunks c
                            WHERE c.thread_id = p_thread_id AND md5(c.message_id) = md5(p_message_id));
        status := CASE WHEN FOUND THEN 'reopened' ELSE 'taken' END;
        IF status = 'taken' THEN
            RETURN;
        END IF;
    END IF;
    PERFORM {schema}.notify_stream(p_thread_id, p_message_id, 0, 'streaming');
END
$$;
