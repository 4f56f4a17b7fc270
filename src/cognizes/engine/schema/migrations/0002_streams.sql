-- Streams of token deltas: which messages are being written, by whom, and how finished ones were cut into chunks.

-- message_streams: one row for each message that was or is streamed. `owner` is the process that writes it; null means
-- that any process may (a producer over REST). A stream whose lease ran out is stored as interrupted by whoever sees it.
-- `chunk_lengths` says how long each chunk of a finished message was, so that its body can be cut as it was streamed.
CREATE TABLE IF NOT EXISTS {schema}.message_streams (
    thread_id         uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    message_id        text NOT NULL,
    app_name          text NOT NULL,
    role              text NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    author            text NOT NULL,
    run_id            text CHECK (octet_length(run_id) <= 1000),
    invocation_id     text NOT NULL DEFAULT '',
    status            text NOT NULL DEFAULT 'streaming' CHECK (status IN ('streaming', 'completed', 'interrupted')),
    owner             uuid,
    lease_expires_at  timestamptz,
    final_sequence    bigint,
    chunk_lengths     bytea,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at          timestamptz
) WITH (fillfactor = 80);

-- The digest stands for an id of any length. The lease is in no index, so extending it stays a heap-only update.
CREATE UNIQUE INDEX IF NOT EXISTS message_streams_key ON {schema}.message_streams (thread_id, md5(message_id));
CREATE INDEX IF NOT EXISTS idx_message_streams_open ON {schema}.message_streams (thread_id) WHERE status = 'streaming';
CREATE INDEX IF NOT EXISTS idx_message_streams_ended ON {schema}.message_streams (thread_id, ended_at)
    WHERE ended_at IS NOT NULL;

-- A row of message_chunks holds what one flush carried: the chunks `first_sequence` to `sequence`, cut by `lengths`.
ALTER TABLE {schema}.message_chunks ADD COLUMN IF NOT EXISTS first_sequence bigint;
ALTER TABLE {schema}.message_chunks ADD COLUMN IF NOT EXISTS lengths bytea;
