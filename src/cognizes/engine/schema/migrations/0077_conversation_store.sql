-- Conversations of Pydantic AI's ConversationStore: entries, each with one message and the entry before it, and a record for
-- each conversation that points at its last entry. Forks share entries.

-- conversation_entries: `root_id` is the first entry of the history, which all entries that follow from it share.
CREATE TABLE IF NOT EXISTS {schema}.conversation_entries (
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    id          text NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 1000),
    parent_id   text,
    root_id     text NOT NULL,
    kind        text NOT NULL,
    message     json NOT NULL,
    written_by  text NOT NULL,
    PRIMARY KEY (app_name, id)
);

CREATE INDEX IF NOT EXISTS idx_conversation_entries_root ON {schema}.conversation_entries (app_name, root_id);

-- conversation_records: `user_id` is the scope of the conversation. `roots` are the roots of its head and its branches.
CREATE TABLE IF NOT EXISTS {schema}.conversation_records (
    app_name         text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    conversation_id  text NOT NULL,
    user_id          text CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    head_id          text,
    branches         text[] NOT NULL,
    roots            text[] NOT NULL,
    document         json NOT NULL,
    revision         text NOT NULL,
    updated_at       timestamptz NOT NULL,
    written_by       text NOT NULL
);

COMMENT ON COLUMN {schema}.conversation_records.document IS 'Usage, open tool requests, the origin of a fork and the format.';

CREATE UNIQUE INDEX IF NOT EXISTS conversation_records_key
    ON {schema}.conversation_records (app_name, md5(conversation_id));
CREATE INDEX IF NOT EXISTS idx_conversation_records_updated_at
    ON {schema}.conversation_records (app_name, user_id, updated_at DESC);
CREATE INDEX IF NOT EXISTS idx_conversation_records_roots ON {schema}.conversation_records USING gin (roots);
