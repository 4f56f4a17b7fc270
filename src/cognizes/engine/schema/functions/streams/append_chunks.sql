-- Append to a stream without an owning process. The status is one of the following, with the stream's last sequence:
--   appended  the chunks follow the last one
--   known     the range begins before the end: the caller compares the texts
--   gap       the range begins after the end
--   ended     the stream is completed or interrupted
--   owned     a process owns the stream
--   missing   the stream does not exist
CREATE OR REPLACE FUNCTION {schema}.append_chunks(
    p_thread_id uuid, p_message_id text, p_first bigint, p_last bigint, p_delta text, p_lengths bytea, p_lease interval,
    OUT status text, OUT current_sequence bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_stream record;
BEGIN
    -- Chunks may be lost in a crash, and so may this lock's WAL record: do not wait for the disk.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- This lock serializes producers and the completion of the message.
    SELECT s.status, s.owner, s.app_name, s.lease_expires_at INTO v_stream
      FROM {schema}.message_streams s
     WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    current_sequence := coalesce((
        SELECT max(c.sequence) FROM {schema}.message_chunks c
         WHERE c.thread_id = p_thread_id AND md5(c.message_id) = md5(p_message_id)), 0);
    status := CASE WHEN v_stream.status <> 'streaming' THEN 'ended'
                   WHEN v_stream.owner IS NOT NULL THEN 'owned'
                   WHEN p_first <= current_sequence THEN 'known'
                   WHEN p_first > current_sequence + 1 THEN 'gap'
                   ELSE 'appended' END;
    IF status IN ('appended', 'known') AND v_stream.lease_expires_at < clock_timestamp() + p_lease / 2 THEN
        UPDATE {schema}.message_streams SET lease_expires_at = clock_timestamp() + p_lease
         WHERE thread_id = p_thread_id AND md5(message_id) = md5(p_message_id);
    END IF;
    IF status = 'appended' AND p_last >= p_first THEN
        INSERT INTO {schema}.message_chunks (thread_id, message_id, app_name, first_sequence, sequence, delta, lengths)
        VALUES (p_thread_id, p_message_id, v_stream.app_name, p_first, p_last, p_delta, p_lengths);
        current_sequence := p_last;
        PERFORM {schema}.notify_stream(p_thread_id, p_message_id, p_last, 'streaming');
    END IF;
END
$$;
