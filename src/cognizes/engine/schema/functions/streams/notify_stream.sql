-- Announce the last sequence and the status of a stream to all processes. The payload carries the digest of the message
-- id, because a payload is limited to 8000 bytes and an id is not.
CREATE OR REPLACE FUNCTION {schema}.notify_stream(p_thread_id uuid, p_message_id text, p_sequence bigint, p_status text)
RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('stream_moved{channel_suffix}', json_build_array(
        json_build_array(p_thread_id, md5(p_message_id), p_sequence, p_status))::text)
$$;
