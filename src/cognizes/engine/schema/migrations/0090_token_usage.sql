-- token_usage: the tokens of one call of a model, counted once per `id` and thread: the id of the event that reports them, or
-- the id that the caller gave. `input_tokens` and `output_tokens` are totals; the other counts are parts of them.
CREATE TABLE IF NOT EXISTS {schema}.token_usage (
    thread_id           uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    id                  text NOT NULL CHECK (id <> ''),
    app_name            text NOT NULL,
    user_id             text NOT NULL,
    run_id              text,
    model               text NOT NULL CHECK (model <> ''),
    input_tokens        bigint NOT NULL CHECK (input_tokens >= 0),
    output_tokens       bigint NOT NULL CHECK (output_tokens >= 0),
    cached_tokens       bigint NOT NULL DEFAULT 0 CHECK (cached_tokens >= 0),
    cache_write_tokens  bigint NOT NULL DEFAULT 0 CHECK (cache_write_tokens >= 0),
    reasoning_tokens    bigint NOT NULL DEFAULT 0 CHECK (reasoning_tokens >= 0),
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX IF NOT EXISTS token_usage_thread_id_id ON {schema}.token_usage (thread_id, md5(id));
CREATE INDEX IF NOT EXISTS idx_token_usage_user ON {schema}.token_usage (app_name, user_id, created_at);
CREATE INDEX IF NOT EXISTS idx_token_usage_app ON {schema}.token_usage (app_name, created_at);

-- The usage that an event reports is an argument of the append functions.
DROP FUNCTION IF EXISTS {schema}.append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint, bigint, bigint, text, integer, boolean);
DROP FUNCTION IF EXISTS {schema}.append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[], bigint[], bigint[], text[], integer[], boolean);
