-- End a stream: store the message and its event and update the stream's row in one transaction. The status is one of:
--   ended    it is completed or interrupted, now or before; `end_status` and `final_sequence` say how
--   stored   another component stored a message of this id, or the event of a tool call, and p_is_stored is false
--   moved    there are more chunks than p_final_sequence: read them and retry
--   lost     another process owns the stream
--   alive    p_only_expired is true, and the lease has not expired
--   missing  the stream does not exist
-- Without an event (p_event_type null) the stream ends and leaves no message.
CREATE OR REPLACE FUNCTION {schema}.end_stream(
    p_thread_id uuid, p_message_id text, p_status text, p_final_sequence bigint, p_lengths bytea, p_event_type text,
    p_content json, p_text text, p_owner uuid, p_only_expired boolean, p_is_stored boolean, p_checks_chunks boolean,
    p_snapshot_every integer,
    OUT status text, OUT end_status text, OUT final_sequence bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_stream record;
    v_event_id text;
    v_answer text;
BEGIN
    -- Lock the thread before the stream, as runs do: one lock order prevents deadlocks.
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT * INTO v_stream FROM {schema}.message_streams s
     WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    IF v_stream.status <> 'streaming' THEN
        status := 'ended';
        end_status := v_stream.status;
        final_sequence := v_stream.final_sequence;
        RETURN;
    END IF;
    IF p_only_expired AND v_stream.lease_expires_at > clock_timestamp() THEN
        status := 'alive';
    ELSIF NOT p_only_expired AND v_stream.owner IS DISTINCT FROM p_owner THEN
        status := 'lost';
    -- Also for an owned stream: another process may be ending it while its owner still flushes.
    ELSIF p_checks_chunks AND NOT p_is_stored AND p_final_sequence < (
        SELECT max(c.sequence) FROM {schema}.message_chunks c
         WHERE c.thread_id = p_thread_id AND md5(c.message_id) = md5(p_message_id)) THEN
        status := 'moved';
    ELSIF NOT p_is_stored AND EXISTS (
        SELECT FROM {schema}.messages WHERE thread_id = p_thread_id AND md5(id) = md5(p_message_id)) THEN
        status := 'stored';
    -- A tool call is its own event, or a part of the event whose id precedes the infix. That event may have no calls: it
    -- is then the beginning of a text before the call.
    ELSIF NOT p_is_stored AND v_stream.role = 'call' AND EXISTS (
        SELECT FROM {schema}.events e
         WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(regexp_replace(p_message_id, '/call/.*$', ''))
           AND (e.id = p_message_id OR strpos(e.content::text, regexp_replace(p_message_id, '^.*/call/', '')) > 0)) THEN
        status := 'stored';
    END IF;
    IF status IS NOT NULL THEN
        RETURN;
    END IF;

    IF p_event_type IS NOT NULL THEN
        -- An event of this id without text may exist. Both are kept: the message keeps its id, its event gets another.
        v_event_id := CASE WHEN EXISTS (
            SELECT FROM {schema}.events e WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_message_id)
        ) THEN gen_random_uuid()::text ELSE v_stream.message_id END;
        SELECT a.status INTO v_answer FROM {schema}.append_event(
            p_thread_id, v_event_id, v_stream.run_id, v_stream.invocation_id, v_stream.author, p_event_type,
            p_content, '{}', NULL, NULL, NULL, NULL, CASE WHEN v_stream.role NOT IN ('thought', 'call') THEN v_stream.role END, p_text, v_stream.message_id,
            false, true, p_snapshot_every, 0) a;
        IF v_answer <> 'stored' THEN
            RAISE EXCEPTION 'the message of a stream was not stored: %', v_answer;
        END IF;
    END IF;
    status := 'ended';
    end_status := p_status;
    final_sequence := p_final_sequence;
    UPDATE {schema}.message_streams s
       SET status = p_status, final_sequence = p_final_sequence, chunk_lengths = p_lengths, owner = NULL,
           lease_expires_at = NULL, ended_at = clock_timestamp()
     WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id);
    PERFORM {schema}.notify_stream(p_thread_id, p_message_id, p_final_sequence, p_status);
END
$$;
