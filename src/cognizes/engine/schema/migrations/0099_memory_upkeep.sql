-- agent_long_term_history: values of facts that a newer value replaced. A value was valid from `valid_from` to `valid_until`.
CREATE TABLE IF NOT EXISTS {schema}.agent_long_term_history (
    app_name     text NOT NULL,
    user_id      text NOT NULL,
    agent_id     text NOT NULL,
    namespace    text NOT NULL,
    key          text NOT NULL,
    value        jsonb NOT NULL,
    text         text NOT NULL,
    sources      jsonb,
    valid_from   timestamptz NOT NULL,
    valid_until  timestamptz NOT NULL
);

CREATE INDEX IF NOT EXISTS idx_agent_long_term_history_key
    ON {schema}.agent_long_term_history (app_name, user_id, agent_id, md5(namespace), md5(key), valid_from);
CREATE INDEX IF NOT EXISTS idx_agent_long_term_history_valid_until ON {schema}.agent_long_term_history (valid_until);

ALTER TABLE {schema}.agent_long_term_memory ADD COLUMN IF NOT EXISTS sources jsonb;
COMMENT ON COLUMN {schema}.agent_long_term_memory.sources IS 'The events that the value came from: [{"session_id", "event_id"}].';

-- memory_consolidations: how far a session is consolidated into episodes and facts, for each agent.
CREATE TABLE IF NOT EXISTS {schema}.memory_consolidations (
    thread_id      uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    agent_id       text NOT NULL,
    app_name       text NOT NULL,
    last_sequence  bigint NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, agent_id)
);

-- A duplicate is recalled again when the memory that stood for it is deleted.
ALTER TABLE {schema}.memories DROP CONSTRAINT IF EXISTS memories_duplicate_of;
ALTER TABLE {schema}.memories ADD CONSTRAINT memories_duplicate_of FOREIGN KEY (app_name, user_id, duplicate_of)
    REFERENCES {schema}.memories (app_name, user_id, id) ON DELETE SET NULL (duplicate_of);

-- Functions whose arguments change: PostgreSQL would keep both.
DROP FUNCTION IF EXISTS {schema}.set_long_term_memory(text, text, text, text, text, jsonb, text, text, boolean);
DROP FUNCTION IF EXISTS {schema}.append_episode(
    text, text, text, text, text, text, text, jsonb, timestamptz, text, text, boolean);
