-- Tells all processes where a stream stands. Digests, not ids: a payload has less than 8000 bytes, an id has any length.
CREATE OR REPLACE FUNCTION {schema}.ring_stream(p_thread_id uuid, p_message_id text, p_sequence bigint, p_status text)
RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('stream_moved', json_build_array(
        json_build_array(p_thread_id, md5(p_message_id), p_sequence, p_status))::text)
$$;
