-- The seven tables of the Pulse, and the history of the two wider scopes.
-- `app_name` is the tenant and stands on every row, so that row level security is a comparison and never a join.

CREATE EXTENSION IF NOT EXISTS vector;

-- threads: one conversation. `version` counts changes of state, `last_sequence` counts events.
-- The fill factor and the missing index on `updated_at` keep every append a heap-only (HOT) update. A state is stored
-- uncompressed: compressing a large one anew would be the larger part of every append that changes a key of it.
CREATE TABLE IF NOT EXISTS {schema}.threads (
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    app_name       text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id        text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    session_id     text NOT NULL,
    title          text,
    state          jsonb STORAGE EXTERNAL NOT NULL DEFAULT '{}',
    version        bigint NOT NULL DEFAULT 1,
    last_sequence  bigint NOT NULL DEFAULT 0,
    metadata       jsonb NOT NULL DEFAULT '{}',
    began_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);

COMMENT ON COLUMN {schema}.threads.began_at IS 'The moment of its sequence number 0; a fork has that of its source.';

-- Ids are text of any length, an index key is not: the digest stands for the text. There is no second index on app and
-- user: before statistics are there the planner would take it, and read all sessions of a user to find one.
CREATE UNIQUE INDEX IF NOT EXISTS idx_threads_app_user ON {schema}.threads (app_name, user_id, md5(session_id));

-- events: the immutable log. `json`, not `jsonb`: key order, NUL and lone surrogates come back as they went in.
CREATE TABLE IF NOT EXISTS {schema}.events (
    thread_id      uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    sequence_num   bigint NOT NULL,
    id             text NOT NULL DEFAULT gen_random_uuid()::text,
    app_name       text NOT NULL,
    run_id         text CHECK (octet_length(run_id) <= 1000),
    invocation_id  text NOT NULL DEFAULT '',
    author         text NOT NULL,
    event_type     text NOT NULL,
    content        json NOT NULL DEFAULT '{}',
    actions        json NOT NULL DEFAULT '{}',
    version        bigint NOT NULL,
    changes_state  boolean NOT NULL DEFAULT false,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, sequence_num)
);

COMMENT ON COLUMN {schema}.events.version IS 'The thread''s version right after this event.';

CREATE UNIQUE INDEX IF NOT EXISTS events_thread_id_id ON {schema}.events (thread_id, md5(id));
CREATE INDEX IF NOT EXISTS idx_events_state_changes ON {schema}.events (thread_id, version) WHERE changes_state;
CREATE INDEX IF NOT EXISTS idx_events_run ON {schema}.events (run_id, thread_id, sequence_num) WHERE run_id IS NOT NULL;

-- runs: one execution of an agent; its row changes in the transaction of the event that says so.
CREATE TABLE IF NOT EXISTS {schema}.runs (
    thread_id         uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    id                text NOT NULL DEFAULT gen_random_uuid()::text CHECK (octet_length(id) BETWEEN 1 AND 1000),
    app_name          text NOT NULL,
    status            text NOT NULL DEFAULT 'pending'
                      CHECK (status IN ('pending', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    thinking_steps    jsonb NOT NULL DEFAULT '[]',
    tool_calls        jsonb NOT NULL DEFAULT '[]',
    error             text,
    attempt           integer NOT NULL DEFAULT 0,
    lease_expires_at  timestamptz,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at        timestamptz,
    completed_at      timestamptz,
    PRIMARY KEY (thread_id, id)
);

CREATE INDEX IF NOT EXISTS idx_runs_id ON {schema}.runs (id);
CREATE INDEX IF NOT EXISTS idx_runs_status ON {schema}.runs (status, created_at);

-- messages: the text of the events that speak. The key is the event's, so a message costs no second sequence.
CREATE TABLE IF NOT EXISTS {schema}.messages (
    thread_id     uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    sequence_num  bigint NOT NULL,
    id            text NOT NULL,
    event_id      text NOT NULL,
    app_name      text NOT NULL,
    role          text NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    content       text NOT NULL,
    embedding     vector({embedding_dimension}),
    metadata      jsonb NOT NULL DEFAULT '{}',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, sequence_num)
);

CREATE UNIQUE INDEX IF NOT EXISTS messages_thread_id_id ON {schema}.messages (thread_id, md5(id));

-- snapshots: the session's own state at a version. The one at sequence 0 is the state it was created with.
CREATE TABLE IF NOT EXISTS {schema}.snapshots (
    id              uuid NOT NULL DEFAULT gen_random_uuid(),
    thread_id       uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    version         bigint NOT NULL,
    sequence_num    bigint NOT NULL,
    app_name        text NOT NULL,
    state           jsonb NOT NULL,
    events_summary  jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, version)
);

CREATE INDEX IF NOT EXISTS idx_snapshots_sequence ON {schema}.snapshots (thread_id, sequence_num);

-- user_states, app_states: what outlives a session. `version` orders the writes of `state_writes`.
CREATE TABLE IF NOT EXISTS {schema}.user_states (
    user_id     text NOT NULL,
    app_name    text NOT NULL,
    state       jsonb STORAGE EXTERNAL NOT NULL DEFAULT '{}',
    version     bigint NOT NULL DEFAULT 0,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, app_name)
);

CREATE INDEX IF NOT EXISTS idx_user_states_state ON {schema}.user_states USING gin (state jsonb_path_ops);

CREATE TABLE IF NOT EXISTS {schema}.app_states (
    app_name    text PRIMARY KEY,
    state       jsonb STORAGE EXTERNAL NOT NULL DEFAULT '{}',
    version     bigint NOT NULL DEFAULT 0,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS idx_app_states_state ON {schema}.app_states USING gin (state jsonb_path_ops);

-- state_writes: who changed `user:` and `app:` keys, across all threads of a user or an app. Without it time travel
-- could only show what one thread wrote. `user_id` is '' in the app's scope.
CREATE TABLE IF NOT EXISTS {schema}.state_writes (
    app_name      text NOT NULL,
    scope         text NOT NULL CHECK (scope IN ('user', 'app')),
    user_id       text NOT NULL,
    version       bigint NOT NULL,
    delta         jsonb NOT NULL,
    thread_id     uuid,
    sequence_num  bigint,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (app_name, scope, user_id, version)
);

-- message_chunks: token deltas on their way to other processes. Lost in a crash of PostgreSQL, and meant to be.
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.message_chunks (
    thread_id   uuid NOT NULL,
    message_id  text NOT NULL,
    sequence    bigint NOT NULL,
    app_name    text NOT NULL,
    delta       text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX IF NOT EXISTS message_chunks_key ON {schema}.message_chunks (thread_id, md5(message_id), sequence);
CREATE INDEX IF NOT EXISTS idx_message_chunks_created_at ON {schema}.message_chunks USING brin (created_at);

-- maintenance_jobs: which of the engine's housekeeping jobs ran when, so that one process runs each of them.
CREATE TABLE IF NOT EXISTS {schema}.maintenance_jobs (
    name         text PRIMARY KEY,
    last_run_at  timestamptz NOT NULL DEFAULT '-infinity'
);
