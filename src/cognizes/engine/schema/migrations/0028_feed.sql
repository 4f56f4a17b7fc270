-- The feed delivers the chunks of a stream after the events that precede the stream.

-- began_after: the head of the thread when the stream was opened; null in rows of older versions.
ALTER TABLE {schema}.message_streams ADD COLUMN IF NOT EXISTS began_after bigint;

-- open_stream returns the head of the thread, too.
DROP FUNCTION IF EXISTS {schema}.open_stream(uuid, text, text, text, text, text, uuid, interval);
-- The parameter p_settles of end_stream is p_is_stored now, and ring_stream is notify_stream.
DROP FUNCTION IF EXISTS {schema}.end_stream(
    uuid, text, text, bigint, bytea, text, json, text, uuid, boolean, boolean, boolean, integer);
DROP FUNCTION IF EXISTS {schema}.ring_stream(uuid, text, bigint, text);
