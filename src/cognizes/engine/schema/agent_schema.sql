-- Cognizes Engine: the unified schema, for PostgreSQL 16+ with pgvector.
--     psql -d cognizes-engine -f agent_schema.sql
-- Written by `cognizes migrate --sql` from migrations/ and functions/; change those, then write it again.
-- Running it twice is safe, and the engine knows afterwards what has been applied. It is one transaction, and refuses a
-- database that a newer engine has migrated.

BEGIN;
SET LOCAL check_function_bodies = off;
SELECT pg_advisory_xact_lock(289092881993);

-- The tables of the migrator, created before the first migration.
CREATE SCHEMA IF NOT EXISTS "public";
CREATE TABLE IF NOT EXISTS "public".schema_migrations (
    name            text PRIMARY KEY,
    number          integer NOT NULL,
    checksum        text NOT NULL,
    engine_version  text NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT now()
);
-- The revision of the set of functions that a function belongs to. 0: installed before revisions were recorded.
ALTER TABLE "public".schema_migrations ADD COLUMN IF NOT EXISTS revision integer NOT NULL DEFAULT 0;

DO $$
BEGIN
    IF (SELECT max(revision) > 63 OR max(number) > 151 FROM "public".schema_migrations) THEN
        RAISE EXCEPTION 'a newer engine has migrated this database; use the agent_schema.sql of that engine';
    END IF;
END
$$;

-- 0001_pulse.sql
-- The seven tables of the Pulse, and the history of the two wider scopes.
-- `app_name` is the tenant and stands on every row, so that row level security is a comparison and never a join.

CREATE EXTENSION IF NOT EXISTS vector;

-- threads: one conversation. `version` counts changes of state, `last_sequence` counts events.
-- The fill factor and the missing index on `updated_at` keep every append a heap-only (HOT) update. A state is stored
-- uncompressed: compressing a large one anew would be the larger part of every append that changes a key of it.
CREATE TABLE IF NOT EXISTS "public".threads (
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

COMMENT ON COLUMN "public".threads.began_at IS 'The moment of its sequence number 0; a fork has that of its source.';

-- Ids are text of any length, an index key is not: the digest stands for the text. There is no second index on app and
-- user: before statistics are there the planner would take it, and read all sessions of a user to find one.
CREATE UNIQUE INDEX IF NOT EXISTS idx_threads_app_user ON "public".threads (app_name, user_id, md5(session_id));

-- events: the immutable log. `json`, not `jsonb`: key order, NUL and lone surrogates come back as they went in.
CREATE TABLE IF NOT EXISTS "public".events (
    thread_id      uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
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

COMMENT ON COLUMN "public".events.version IS 'The thread''s version right after this event.';

CREATE UNIQUE INDEX IF NOT EXISTS events_thread_id_id ON "public".events (thread_id, md5(id));
CREATE INDEX IF NOT EXISTS idx_events_state_changes ON "public".events (thread_id, version) WHERE changes_state;
CREATE INDEX IF NOT EXISTS idx_events_run ON "public".events (run_id, thread_id, sequence_num) WHERE run_id IS NOT NULL;

-- runs: one execution of an agent; its row changes in the transaction of the event that says so.
CREATE TABLE IF NOT EXISTS "public".runs (
    thread_id         uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
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

CREATE INDEX IF NOT EXISTS idx_runs_id ON "public".runs (id);
CREATE INDEX IF NOT EXISTS idx_runs_status ON "public".runs (status, created_at);

-- messages: the text of the events that speak. The key is the event's, so a message costs no second sequence.
CREATE TABLE IF NOT EXISTS "public".messages (
    thread_id     uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    sequence_num  bigint NOT NULL,
    id            text NOT NULL,
    event_id      text NOT NULL,
    app_name      text NOT NULL,
    role          text NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
    content       text NOT NULL,
    embedding     vector(256),
    metadata      jsonb NOT NULL DEFAULT '{}',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, sequence_num)
);

CREATE UNIQUE INDEX IF NOT EXISTS messages_thread_id_id ON "public".messages (thread_id, md5(id));

-- snapshots: the session's own state at a version. The one at sequence 0 is the state it was created with.
CREATE TABLE IF NOT EXISTS "public".snapshots (
    id              uuid NOT NULL DEFAULT gen_random_uuid(),
    thread_id       uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    version         bigint NOT NULL,
    sequence_num    bigint NOT NULL,
    app_name        text NOT NULL,
    state           jsonb NOT NULL,
    events_summary  jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, version)
);

CREATE INDEX IF NOT EXISTS idx_snapshots_sequence ON "public".snapshots (thread_id, sequence_num);

-- user_states, app_states: what outlives a session. `version` orders the writes of `state_writes`.
CREATE TABLE IF NOT EXISTS "public".user_states (
    user_id     text NOT NULL,
    app_name    text NOT NULL,
    state       jsonb STORAGE EXTERNAL NOT NULL DEFAULT '{}',
    version     bigint NOT NULL DEFAULT 0,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, app_name)
);

CREATE INDEX IF NOT EXISTS idx_user_states_state ON "public".user_states USING gin (state jsonb_path_ops);

CREATE TABLE IF NOT EXISTS "public".app_states (
    app_name    text PRIMARY KEY,
    state       jsonb STORAGE EXTERNAL NOT NULL DEFAULT '{}',
    version     bigint NOT NULL DEFAULT 0,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS idx_app_states_state ON "public".app_states USING gin (state jsonb_path_ops);

-- state_writes: who changed `user:` and `app:` keys, across all threads of a user or an app. Without it time travel
-- could only show what one thread wrote. `user_id` is '' in the app's scope.
CREATE TABLE IF NOT EXISTS "public".state_writes (
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
CREATE UNLOGGED TABLE IF NOT EXISTS "public".message_chunks (
    thread_id   uuid NOT NULL,
    message_id  text NOT NULL,
    sequence    bigint NOT NULL,
    app_name    text NOT NULL,
    delta       text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX IF NOT EXISTS message_chunks_key ON "public".message_chunks (thread_id, md5(message_id), sequence);
CREATE INDEX IF NOT EXISTS idx_message_chunks_created_at ON "public".message_chunks USING brin (created_at);

-- maintenance_jobs: which of the engine's housekeeping jobs ran when, so that one process runs each of them.
CREATE TABLE IF NOT EXISTS "public".maintenance_jobs (
    name         text PRIMARY KEY,
    last_run_at  timestamptz NOT NULL DEFAULT '-infinity'
);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0001_pulse.sql', 1, '8425274c6a453887185c98be4a599cce574826e1629d738bffe14e050d34dba9', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0002_streams.sql
-- Streams of token deltas: which messages are being written, by whom, and how finished ones were cut into chunks.

-- message_streams: one row for each message that was or is streamed. `owner` is the process that writes it; null means
-- that any process may (a producer over REST). A stream whose lease ran out is stored as interrupted by whoever sees it.
-- `chunk_lengths` says how long each chunk of a finished message was, so that its body can be cut as it was streamed.
CREATE TABLE IF NOT EXISTS "public".message_streams (
    thread_id         uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
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
CREATE UNIQUE INDEX IF NOT EXISTS message_streams_key ON "public".message_streams (thread_id, md5(message_id));
CREATE INDEX IF NOT EXISTS idx_message_streams_open ON "public".message_streams (thread_id) WHERE status = 'streaming';
CREATE INDEX IF NOT EXISTS idx_message_streams_ended ON "public".message_streams (thread_id, ended_at)
    WHERE ended_at IS NOT NULL;

-- A row of message_chunks holds what one flush carried: the chunks `first_sequence` to `sequence`, cut by `lengths`.
ALTER TABLE "public".message_chunks ADD COLUMN IF NOT EXISTS first_sequence bigint;
ALTER TABLE "public".message_chunks ADD COLUMN IF NOT EXISTS lengths bytea;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0002_streams.sql', 2, '665f8638e982ec0a7db0b9300a18258f00bfc3eba9e49c2908bc6950a1c05ce0', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0003_runs.sql
-- Runs that wait, die and go on: who executes them, what they wait for, the signals they got and the steps they took.

-- `handler` names who can execute the run; a run without one belongs to the process that started it.
-- `attempt` counts claims and fences writes, `failures` counts attempts that went wrong since the run last got on.
-- `wait_*` describe the present wait, or the last one; `resumption_context` is what the run wants back after it.
ALTER TABLE "public".runs
    ADD COLUMN IF NOT EXISTS handler text CHECK (octet_length(handler) BETWEEN 1 AND 1000),
    ADD COLUMN IF NOT EXISTS input json,
    ADD COLUMN IF NOT EXISTS result json,
    ADD COLUMN IF NOT EXISTS worker_id text,
    ADD COLUMN IF NOT EXISTS available_at timestamptz,
    ADD COLUMN IF NOT EXISTS max_attempts integer NOT NULL DEFAULT 3 CHECK (max_attempts > 0),
    ADD COLUMN IF NOT EXISTS failures integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS wait_kind text CHECK (wait_kind IN ('webhook', 'human', 'timer', 'signal', 'message')),
    ADD COLUMN IF NOT EXISTS wait_key text,
    ADD COLUMN IF NOT EXISTS wait_reason text,
    ADD COLUMN IF NOT EXISTS wait_expires_at timestamptz,
    ADD COLUMN IF NOT EXISTS wait_timeout_node text,
    ADD COLUMN IF NOT EXISTS wait_after bigint,
    ADD COLUMN IF NOT EXISTS resumption_context json;

COMMENT ON COLUMN "public".runs.wait_after IS 'A wait for a message: what the user says after this event is the answer.';

CREATE INDEX IF NOT EXISTS idx_runs_claimable ON "public".runs (handler, created_at, id) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS idx_runs_leased ON "public".runs (lease_expires_at) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS idx_runs_expiring ON "public".runs (wait_expires_at) WHERE status = 'waiting';
CREATE INDEX IF NOT EXISTS idx_runs_listening ON "public".runs (thread_id)
    WHERE status = 'waiting' AND wait_kind = 'message';

-- run_signals: what ended a wait, or will: one for each correlation key of a run, however often it was sent.
CREATE TABLE IF NOT EXISTS "public".run_signals (
    thread_id        uuid NOT NULL,
    run_id           text NOT NULL,
    correlation_key  text NOT NULL,
    app_name         text NOT NULL,
    source           text NOT NULL CHECK (source IN ('signal', 'timer', 'timeout', 'message')),
    payload          json NOT NULL DEFAULT 'null',
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at          timestamptz,
    FOREIGN KEY (thread_id, run_id) REFERENCES "public".runs (thread_id, id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX IF NOT EXISTS run_signals_key ON "public".run_signals (thread_id, run_id, md5(correlation_key));

-- run_steps: what a run has done, so that it is not done again. One that is `started` and of an earlier attempt was
-- cut off, and nobody knows how far it came.
CREATE TABLE IF NOT EXISTS "public".run_steps (
    thread_id    uuid NOT NULL,
    run_id       text NOT NULL,
    name         text NOT NULL,
    app_name     text NOT NULL,
    status       text NOT NULL CHECK (status IN ('started', 'finished', 'failed')),
    attempt      integer NOT NULL,
    result       json,
    error        text,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at  timestamptz,
    FOREIGN KEY (thread_id, run_id) REFERENCES "public".runs (thread_id, id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX IF NOT EXISTS run_steps_key ON "public".run_steps (thread_id, run_id, md5(name));

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0003_runs.sql', 3, 'e1c91c5ba50d0553d360a490e43610d20ef19e375c9e006237aa1264e0198b6c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0004_memory.sql
-- Durable memory (seed 004): three stores, and what recall needs. (app_name, user_id) stands first in every key: no
-- query ever looks at another user's rows.

-- agent_states: working memory, one document for each agent and session. It goes with its thread.
CREATE TABLE IF NOT EXISTS "public".agent_states (
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    agent_id    text NOT NULL CHECK (octet_length(agent_id) BETWEEN 1 AND 1000),
    session_id  text NOT NULL,
    thread_id   uuid REFERENCES "public".threads (id) ON DELETE CASCADE,
    payload     jsonb NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX IF NOT EXISTS agent_states_key
    ON "public".agent_states (app_name, user_id, agent_id, md5(session_id));
CREATE INDEX IF NOT EXISTS idx_agent_states_thread ON "public".agent_states (thread_id) WHERE thread_id IS NOT NULL;

-- agent_long_term_memory: facts that outlive sessions, by key. `text` is what recall reads; empty is not recalled.
CREATE TABLE IF NOT EXISTS "public".agent_long_term_memory (
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    agent_id    text NOT NULL CHECK (octet_length(agent_id) BETWEEN 1 AND 1000),
    namespace   text NOT NULL DEFAULT '',
    key         text NOT NULL,
    value       jsonb NOT NULL,
    text        text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX IF NOT EXISTS agent_long_term_memory_key
    ON "public".agent_long_term_memory (app_name, user_id, agent_id, md5(namespace), md5(key));
CREATE INDEX IF NOT EXISTS idx_agent_long_term_memory_updated_at
    ON "public".agent_long_term_memory (app_name, user_id, agent_id, updated_at);

-- agent_episodic_chunks: what happened, an entry for each run that ended, or as the agent writes it.
CREATE TABLE IF NOT EXISTS "public".agent_episodic_chunks (
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    id          text NOT NULL,
    agent_id    text NOT NULL CHECK (octet_length(agent_id) BETWEEN 1 AND 1000),
    session_id  text,
    job_id      text,
    summary     text NOT NULL,
    payload     jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON COLUMN "public".agent_episodic_chunks.job_id IS 'The run; seed 004 calls it a job.';

CREATE UNIQUE INDEX IF NOT EXISTS agent_episodic_chunks_key
    ON "public".agent_episodic_chunks (app_name, user_id, md5(id));
CREATE INDEX IF NOT EXISTS idx_agent_episodic_chunks_agent
    ON "public".agent_episodic_chunks (app_name, user_id, agent_id, created_at);
CREATE INDEX IF NOT EXISTS idx_agent_episodic_chunks_session
    ON "public".agent_episodic_chunks (app_name, user_id, agent_id, md5(session_id), created_at)
    WHERE session_id IS NOT NULL;

-- agent_episodes_due: runs that ended and have no episode yet. Written with the run's end, so a crash loses none.
CREATE TABLE IF NOT EXISTS "public".agent_episodes_due (
    thread_id   uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    run_id      text NOT NULL,
    app_name    text NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, run_id)
);

CREATE INDEX IF NOT EXISTS idx_agent_episodes_due_due_at ON "public".agent_episodes_due (due_at);

-- memories: every text that can be recalled. `terms` are the keys of its words, each as often as it occurs; a key
-- stands for a word in one user's memories, so a posting list of the index never holds two users' rows.
CREATE TABLE IF NOT EXISTS "public".memories (
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    id          bigint GENERATED BY DEFAULT AS IDENTITY,
    agent_id    text NOT NULL CHECK (octet_length(agent_id) BETWEEN 1 AND 1000),
    kind        text NOT NULL CHECK (kind IN ('long_term', 'episodic', 'turn', 'note')),
    namespace   text NOT NULL DEFAULT '',
    source_id   text NOT NULL,
    session_id  text,
    position    bigint NOT NULL DEFAULT 0,
    author      text,
    text        text NOT NULL,
    terms       bigint[] NOT NULL,
    length      integer NOT NULL,
    content     json,
    revision    bigint NOT NULL DEFAULT 1,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (app_name, user_id, id)
);

COMMENT ON COLUMN "public".memories.source_id IS 'The caller''s own id: of an event, an episode, or namespace and key.';
COMMENT ON COLUMN "public".memories.position IS 'Its place in the session; neighbours are found by it.';
COMMENT ON COLUMN "public".memories.revision IS 'Counts changes of the text, so that a late vector of an old one is not kept.';

CREATE UNIQUE INDEX IF NOT EXISTS memories_source
    ON "public".memories (app_name, user_id, kind, agent_id, md5(coalesce(session_id, '')), md5(source_id));
CREATE INDEX IF NOT EXISTS idx_memories_session
    ON "public".memories (app_name, user_id, md5(session_id), position, id) WHERE session_id IS NOT NULL;
-- Without a pending list: a recall would have to read it from one end to the other.
CREATE INDEX IF NOT EXISTS idx_memories_terms ON "public".memories USING gin (terms) WITH (fastupdate = off);

-- memory_scopes: how many memories a user has and how long they are, kept by a trigger: BM25 asks for both.
-- `graph_model`: the model whose graph (HNSW index) the vectors of this user go into, once they are many.
CREATE TABLE IF NOT EXISTS "public".memory_scopes (
    app_name        text NOT NULL,
    user_id         text NOT NULL,
    memories        bigint NOT NULL,
    total_length    bigint NOT NULL,
    graph_model     text,
    graph_is_ready  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (app_name, user_id)
) WITH (fillfactor = 50);

-- memory_vectors: one vector for each memory, of the model that made it. The dimension is the model's.
CREATE TABLE IF NOT EXISTS "public".memory_vectors (
    app_name    text NOT NULL,
    user_id     text NOT NULL,
    memory_id   bigint NOT NULL,
    model       text NOT NULL,
    in_graph    boolean NOT NULL DEFAULT false,
    embedding   halfvec NOT NULL,
    PRIMARY KEY (app_name, user_id, memory_id),
    FOREIGN KEY (app_name, user_id, memory_id) REFERENCES "public".memories (app_name, user_id, id) ON DELETE CASCADE
);

-- memory_embedding_queue: memories that wait for a vector. A claim runs out by itself, so a crash loses none.
CREATE TABLE IF NOT EXISTS "public".memory_embedding_queue (
    app_name     text NOT NULL,
    user_id      text NOT NULL,
    memory_id    bigint NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_parked    boolean NOT NULL DEFAULT false,
    error        text,
    PRIMARY KEY (app_name, user_id, memory_id),
    FOREIGN KEY (app_name, user_id, memory_id) REFERENCES "public".memories (app_name, user_id, id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_memory_embedding_queue_due_at
    ON "public".memory_embedding_queue (due_at) WHERE NOT is_parked;

-- memory_deletions: turns that were forgotten on purpose: adding their session again does not bring them back.
CREATE TABLE IF NOT EXISTS "public".memory_deletions (
    app_name    text NOT NULL,
    user_id     text NOT NULL,
    source      text NOT NULL,
    deleted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (app_name, user_id, source)
);

COMMENT ON COLUMN "public".memory_deletions.source IS 'A digest of agent, session and source id.';

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0004_memory.sql', 4, '8716f1a4c4cad164b91e605c4eb5b19263ac8895f490005c29e3d3ddc405df34', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0005_sync.sql
-- Branches of a conversation without copying, and counts that do not grow with the conversation.

-- Whoever knows a thread only by its caller's session id finds it by this, where it is unique.
CREATE INDEX IF NOT EXISTS idx_threads_session ON "public".threads (md5(session_id));

-- branches: a name, where it comes from and the event it forked at. `main` is number 0 and has no row. A deleted branch
-- keeps its number, because the events that were said on it keep it too.
CREATE TABLE IF NOT EXISTS "public".branches (
    thread_id   uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    number      integer NOT NULL,
    app_name    text NOT NULL,
    name        text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    parent      integer NOT NULL,
    forked_at   bigint NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at  timestamptz,
    PRIMARY KEY (thread_id, number)
);

CREATE UNIQUE INDEX IF NOT EXISTS branches_name ON "public".branches (thread_id, name) WHERE deleted_at IS NULL;

-- branch_segments: from this event on, what is appended belongs to this branch. A thread without rows is all `main`, so
-- an append writes nothing here: only a switch does. The newest segment names the active branch.
CREATE TABLE IF NOT EXISTS "public".branch_segments (
    thread_id      uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    from_sequence  bigint NOT NULL,
    app_name       text NOT NULL,
    branch         integer NOT NULL,
    PRIMARY KEY (thread_id, from_sequence)
);

-- message_counts: how many messages a thread had up to an event. The past does not change, so a count stays true; readers
-- leave one behind after they had to count many.
CREATE TABLE IF NOT EXISTS "public".message_counts (
    thread_id     uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    sequence_num  bigint NOT NULL,
    app_name      text NOT NULL,
    messages      bigint NOT NULL,
    PRIMARY KEY (thread_id, sequence_num)
);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0005_sync.sql', 5, '2aae68b54bde8dfc0199331602ba7e213358a5f0245681338bf48a5ba7d2537d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0006_access.sql
-- Who may come in, and what those did who may do everything.

-- api_keys: the secret itself is nowhere. A plain SHA-256 is right for it: a secret of 256 random bits cannot be guessed,
-- so a slow hash, which protects what people choose, would only slow every request down. No tenant reads this table:
-- a key may be for several apps, or, when `app_names` is null, for all of them.
CREATE TABLE IF NOT EXISTS "public".api_keys (
    id            text PRIMARY KEY,
    secret_hash   bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    name          text NOT NULL DEFAULT '',
    app_names     text[] CHECK (cardinality(app_names) > 0),
    user_id       text,
    permissions   text[] NOT NULL CHECK (permissions <@ ARRAY['read', 'write', 'admin'] AND cardinality(permissions) > 0),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz,
    revoked_at    timestamptz,
    last_used_at  timestamptz
);

-- access_tickets: each opens one stream, once, within seconds. A crash of the server may lose them: ask for another.
CREATE UNLOGGED TABLE IF NOT EXISTS "public".access_tickets (
    secret_hash           bytea PRIMARY KEY,
    name                  text NOT NULL,
    key_id                text,
    app_names             text[],
    user_id               text,
    permissions           text[] NOT NULL,
    principal_expires_at  timestamptz,
    expires_at            timestamptz NOT NULL
);

CREATE INDEX IF NOT EXISTS idx_access_tickets_expires_at ON "public".access_tickets (expires_at);

-- audit_log: administrative and debugging writes. `app_name` is '*' where all apps are meant.
CREATE TABLE IF NOT EXISTS "public".audit_log (
    app_name    text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    id          uuid NOT NULL DEFAULT gen_random_uuid(),
    actor       text NOT NULL,
    action      text NOT NULL,
    target      text NOT NULL DEFAULT '',
    status      integer,
    request_id  text NOT NULL DEFAULT '',
    PRIMARY KEY (app_name, created_at, id)
);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0006_access.sql', 6, '35b44dfabbeceb64df4d25188fa17dc80d3860adb85cd011f408d776e2a0e340', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0007_core.sql
-- The state that a session was created with is a snapshot only once the session's state is another one: a session that
-- is created costs one row. `is_as_created` is true while the state itself tells what it was created with.
ALTER TABLE "public".threads ADD COLUMN IF NOT EXISTS is_as_created boolean NOT NULL DEFAULT false;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0007_core.sql', 7, '89f331229ce646a79fb32aa0ee07a652b05c9451a561a8437ef9b6ce41656450', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0009_monitor.sql
-- What the monitor asks of runs: those of a thread, newest first.
CREATE INDEX IF NOT EXISTS idx_runs_thread ON "public".runs (thread_id, created_at);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0009_monitor.sql', 9, '7c9ebe03cb654e83c3a5d82b59cd88d24fb7040fe469e9e3e42a68cfc651caad', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0011_memory.sql
-- Runs are claimed in the order in which they became due, and what is due in days does not stand in front of what is due
-- now. Functions whose arguments have changed leave no older namesake behind.

CREATE INDEX IF NOT EXISTS idx_runs_due ON "public".runs (handler, greatest(created_at, available_at), id)
    WHERE status = 'pending';
DROP INDEX IF EXISTS "public".idx_runs_claimable;

DROP FUNCTION IF EXISTS "public".change_run(uuid, text, text, text, text, text, json);
DROP FUNCTION IF EXISTS "public".claim_runs(text[], text, interval, integer);
DROP FUNCTION IF EXISTS "public".end_run(uuid, text, integer, text, json, text, text, text, json);
DROP FUNCTION IF EXISTS "public".recall_by_words(
    text, text, text, text, text, text[], text, timestamptz, timestamptz, integer);
DROP FUNCTION IF EXISTS "public".recall_by_vector(
    text, text, text, integer, text, text, text[], text, timestamptz, timestamptz, integer);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0011_memory.sql', 11, '19b1119d4159d4b4547cbf6718e929c9e7972d6e1112ba62fbec7c17021b9335', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0012_thoughts.sql
-- What a model thinks is streamed like what it says, to be followed from other processes. It is no message: the event that
-- it becomes is a thought.
ALTER TABLE "public".message_streams DROP CONSTRAINT IF EXISTS message_streams_role_check;
ALTER TABLE "public".message_streams ADD CONSTRAINT message_streams_role_check
    CHECK (role IN ('user', 'assistant', 'tool', 'system', 'thought'));

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0012_thoughts.sql', 12, '72675adfe3b7d99c928eb562fa2bc24f9523366e03c1b296e0b77d8d7f3b4210', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0014_runs.sql
-- A signal remembers which kinds of wait its sender may answer (`may_answer`, null: all kinds) and the id under which it
-- was sent (`signal_id`), so that a signal that is sent again after a lost answer gets the same answer.
ALTER TABLE "public".run_signals
    ADD COLUMN IF NOT EXISTS may_answer text[],
    ADD COLUMN IF NOT EXISTS signal_id text;

COMMENT ON COLUMN "public".run_signals.may_answer IS 'Wait kinds that the sender may answer; null: all kinds.';

-- Functions whose arguments have changed: the older signatures are removed.
DROP FUNCTION IF EXISTS "public".resolve_wait(uuid, text, text, json);
DROP FUNCTION IF EXISTS "public".signal_run(uuid, text, text, json);
DROP FUNCTION IF EXISTS "public".take_run(uuid, text, text, interval);
DROP FUNCTION IF EXISTS "public".claim_run(uuid, text, text, interval);
DROP FUNCTION IF EXISTS "public".release_run(uuid, text, integer, text, interval, interval);
DROP FUNCTION IF EXISTS "public".apply_memory_snapshot(uuid, text, text, text, jsonb, jsonb, text, integer);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0014_runs.sql', 14, '1ba539aa7b72a66b0c1261036b07b57970308ede8359b7c1c10e42994a52548d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0016_message_search.sql
-- What a deleted session leaves behind is found by its session id, whichever agent wrote it.
CREATE INDEX IF NOT EXISTS idx_agent_episodic_chunks_of_session
    ON "public".agent_episodic_chunks (app_name, user_id, md5(session_id)) WHERE session_id IS NOT NULL;

COMMENT ON COLUMN "public".memory_deletions.source IS
    'A digest of agent, session and source id; of a deleted session, of its id alone.';

-- Messages are found by their words and by their meaning. A background task writes `terms` (the keys of the words, once for
-- the app and once for the user) and `embedding` with one update; an append writes neither. `embedding_model` says who made
-- the vector. A message without terms waits to be indexed; one without a model has no vector, and waits for an embedder.
ALTER TABLE "public".messages ADD COLUMN IF NOT EXISTS terms bigint[];
ALTER TABLE "public".messages ADD COLUMN IF NOT EXISTS embedding_model text;

COMMENT ON COLUMN "public".messages.terms IS 'The keys of its words; null while it waits to be indexed.';
COMMENT ON COLUMN "public".messages.embedding_model IS 'The model that made the vector, or refused the text; null while it has none.';

-- All that an append pays: an entry at the end of a small index, which leaves it when the message is indexed.
CREATE INDEX IF NOT EXISTS idx_messages_waiting ON "public".messages (created_at) WHERE terms IS NULL AND content <> '';
CREATE INDEX IF NOT EXISTS idx_messages_without_vector ON "public".messages (created_at)
    WHERE terms IS NOT NULL AND embedding_model IS NULL;
CREATE INDEX IF NOT EXISTS idx_messages_terms ON "public".messages USING gin (terms) WITH (fastupdate = off)
    WHERE terms IS NOT NULL;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0016_message_search.sql', 16, '87c55014141e503af8d97e5f0ccb8c2b10c54efdd3dc175877009c06418b51eb', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0019_revision.sql
-- Repairs databases of commits before 0.1.0, which edited 0001 and 0004 after databases had run them. `schema/revision.json`
-- lists the checksums of those earlier contents. A database that ran the released contents is not changed.

DO $$
BEGIN
    IF to_regclass('"public".threads_app_user_session') IS NOT NULL THEN
        DROP INDEX "public".idx_threads_app_user;
        ALTER INDEX "public".threads_app_user_session RENAME TO idx_threads_app_user;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '"public".threads'::regclass AND attname = 'began_at') THEN
        -- A change of the type rewrites the rows and fires no trigger, so `updated_at` stays as it is.
        ALTER TABLE "public".threads ADD COLUMN began_at timestamptz;
        ALTER TABLE "public".threads
            ALTER COLUMN began_at TYPE timestamptz USING created_at,
            ALTER COLUMN began_at SET DEFAULT clock_timestamp(),
            ALTER COLUMN began_at SET NOT NULL;
        ALTER TABLE "public".threads ALTER COLUMN state SET STORAGE EXTERNAL;
        ALTER TABLE "public".user_states ALTER COLUMN state SET STORAGE EXTERNAL;
        ALTER TABLE "public".app_states ALTER COLUMN state SET STORAGE EXTERNAL;
        -- Its result has other columns since.
        DROP FUNCTION IF EXISTS "public".create_sessions(
            uuid[], text[], text[], text[], text[], text[], text[], text[], text[], integer);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = '"public".memory_scopes'::regclass AND attname = 'graph_model') THEN
        ALTER TABLE "public".memory_scopes
            ADD COLUMN graph_model text,
            ADD COLUMN graph_is_ready boolean NOT NULL DEFAULT false;
    END IF;
END
$$;

-- Functions of those commits whose arguments have changed since.
DROP FUNCTION IF EXISTS "public".append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer);
DROP FUNCTION IF EXISTS "public".append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint);
DROP FUNCTION IF EXISTS "public".append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer);
DROP FUNCTION IF EXISTS "public".append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[]);
DROP FUNCTION IF EXISTS "public".merge_user_state(text, text, jsonb, uuid, bigint, integer);
DROP FUNCTION IF EXISTS "public".merge_app_state(text, jsonb, uuid, bigint, integer);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0019_revision.sql', 19, '5c345f8470bfe38008819ab30cd0c44d8c7e633383316e4d7a72d76cfd1e7d65', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0020_write_order.sql
-- Defaults for rows typed into psql, and a counter that orders writes of different threads.

-- The rest of a minimal INSERT is filled in by the triggers of functions/12, 13, 16, 17 and 18.
ALTER TABLE "public".events ALTER COLUMN author SET DEFAULT 'system';
ALTER TABLE "public".threads ALTER COLUMN is_as_created SET DEFAULT true;

-- write_numbers: one counter for all threads. Time travel compares the number of an event with those of the writes to `user:`
-- and `app:` state; a clock may be set back, a sequence is not. Rows from before this migration have no number (NULL): they
-- precede every numbered row, and among themselves their timestamps decide. Adding the column rewrites no table.
CREATE SEQUENCE IF NOT EXISTS "public".write_numbers;
ALTER TABLE "public".threads ADD COLUMN IF NOT EXISTS began_number bigint;
ALTER TABLE "public".events ADD COLUMN IF NOT EXISTS write_number bigint;
ALTER TABLE "public".state_writes ADD COLUMN IF NOT EXISTS write_number bigint;
ALTER TABLE "public".branches ADD COLUMN IF NOT EXISTS write_number bigint;
ALTER TABLE "public".threads ALTER COLUMN began_number SET DEFAULT nextval('"public".write_numbers');
ALTER TABLE "public".events ALTER COLUMN write_number SET DEFAULT nextval('"public".write_numbers');
ALTER TABLE "public".state_writes ALTER COLUMN write_number SET DEFAULT nextval('"public".write_numbers');
ALTER TABLE "public".branches ALTER COLUMN write_number SET DEFAULT nextval('"public".write_numbers');

COMMENT ON COLUMN "public".threads.began_number IS 'The write number of its sequence number 0; a fork has that of its source.';
COMMENT ON COLUMN "public".events.write_number IS 'Orders writes of different threads; NULL: before numbers, or imported.';

-- Both got an argument, the write number.
DROP FUNCTION IF EXISTS "public".merge_user_state(text, text, jsonb, uuid, bigint, timestamptz, integer);
DROP FUNCTION IF EXISTS "public".merge_app_state(text, jsonb, uuid, bigint, timestamptz, integer);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0020_write_order.sql', 20, '2d47789a05a3d142716af63c8a1c9971803de5ef8a021651749b22354e399622', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0021_page_bytes.sql
-- The size of an event as text, stored with it: a page is bounded by bytes without reading the documents of the events
-- that do not fit. PostgreSQL writes the table once for it; every way of inserting an event fills it.
ALTER TABLE "public".events ADD COLUMN IF NOT EXISTS bytes bigint GENERATED ALWAYS AS (
    octet_length(id) + octet_length(invocation_id) + octet_length(author) + octet_length(content::text)
    + octet_length(actions::text)) STORED;

-- Tool calls and results that have no text have no row in `messages`; a conversation shows them at their place.
CREATE INDEX IF NOT EXISTS idx_events_tools ON "public".events (thread_id, sequence_num)
    WHERE event_type IN ('act', 'tool_call', 'observe', 'tool_result');

-- What was counted did not include them; readers count again and leave new counts behind.
DELETE FROM "public".message_counts;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0021_page_bytes.sql', 21, '16b1b31216ab5823147ded17766f2a148f4ff65d91ab96614ff2ba1485455e01', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0022_append.sql
-- The fence of a run is an argument of the append functions.
DROP FUNCTION IF EXISTS "public".append_fenced_event(
    text, integer, uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean,
    boolean, integer, integer, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS "public".append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS "public".append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[], bigint[], bigint[]);

-- They are called `snapshot_initial_state` and `snapshot_initial_states` now.
DROP TRIGGER IF EXISTS keep_first_state ON "public".threads;
DROP FUNCTION IF EXISTS "public".keep_first_state();
DROP FUNCTION IF EXISTS "public".keep_first_states(uuid[]);

COMMENT ON COLUMN "public".threads.is_as_created IS 'Whether the state is still the initial one, so that no snapshot of it exists.';

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0022_append.sql', 22, '57669be27c3f4dc08e197890e7da61c13ab1fa403043c535077e0da0c431e373', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0023_retention.sql
-- Old writes to `user:` and `app:` state are folded into one row, which holds the whole state as of its version.
ALTER TABLE "public".state_writes ADD COLUMN IF NOT EXISTS is_folded boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN "public".state_writes.is_folded IS 'Whether delta is the whole state at this version; earlier writes are gone.';

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0023_retention.sql', 23, '3b8d3ba6d34ee799d62d7b752493ff3ab2d7bc6b54d338ec811411d1d73f102a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0025_run_leases.sql
-- `lease_duration` is what the present attempt asked for: progress of a run extends its lease by it.
ALTER TABLE "public".runs ADD COLUMN IF NOT EXISTS lease_duration interval;

-- Runs that a client started over REST had no lease. They get one that is long enough for a client that does not extend it.
UPDATE "public".runs SET lease_duration = interval '1 day', lease_expires_at = clock_timestamp() + interval '1 day'
 WHERE status = 'running' AND lease_expires_at IS NULL;

-- Functions that are gone, or whose arguments or results have changed.
DROP FUNCTION IF EXISTS "public".change_run(uuid, text, text, text, text, text, json, json);
DROP FUNCTION IF EXISTS "public".claim_run(uuid, text, text, interval, text);
DROP FUNCTION IF EXISTS "public".claim_runs(text[], text[], interval);
DROP FUNCTION IF EXISTS "public".create_run(uuid, text, text, text, text, json);
DROP FUNCTION IF EXISTS "public".end_runs(
    uuid[], text[], integer[], text[], text[], text[], text[], text[], text[], boolean);
DROP FUNCTION IF EXISTS "public".enqueue_run(
    uuid, text, text, text, json, integer, timestamptz, text, interval, text, text, json);
DROP FUNCTION IF EXISTS "public".record_run_progress(uuid, text, text, jsonb, text, json);
DROP FUNCTION IF EXISTS "public".take_run(uuid, text, text, interval, text);
DROP FUNCTION IF EXISTS "public".turn_over_runs(
    uuid[], text[], integer[], text[], text[], text[], text[], text[], text[], jsonb, interval);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0025_run_leases.sql', 25, '55c2a769ddfc1e3dfdabeeeced2a74caac7768098a22211bce9409858f290635', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0028_feed.sql
-- The feed delivers the chunks of a stream after the events that precede the stream.

-- began_after: the head of the thread when the stream was opened; null in rows of older versions.
ALTER TABLE "public".message_streams ADD COLUMN IF NOT EXISTS began_after bigint;

-- open_stream returns the head of the thread, too.
DROP FUNCTION IF EXISTS "public".open_stream(uuid, text, text, text, text, text, uuid, interval);
-- The parameter p_settles of end_stream is p_is_stored now, and ring_stream is notify_stream.
DROP FUNCTION IF EXISTS "public".end_stream(
    uuid, text, text, bigint, bytea, text, json, text, uuid, boolean, boolean, boolean, integer);
DROP FUNCTION IF EXISTS "public".ring_stream(uuid, text, bigint, text);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0028_feed.sql', 28, 'c8441a26180ad87f8ceace841f6d888d6cbb28aa1e567cde396ae1a1034e51c6', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0030_policy_names.sql
-- The permissive policy of every table with an app_name is called `all_roles`.
DO $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN
        SELECT p.polrelid::regclass
          FROM pg_policy p
          JOIN pg_class c ON c.oid = p.polrelid
         WHERE p.polname = 'everybody' AND c.relnamespace = '"public"'::regnamespace AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        EXECUTE format('ALTER POLICY everybody ON %s RENAME TO all_roles', v_table);
    END LOOP;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0030_policy_names.sql', 30, '243c017b07f8cd4d245b658fa3381cc3be2337853f98d1a63a5990b978414bd2', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0040_recall.sql
-- Functions whose arguments or result columns change: PostgreSQL would refuse the new one, or keep both.
DROP FUNCTION IF EXISTS "public".recall_by_words(
    text, text, text, text, text, text[], text, timestamptz, timestamptz, integer, boolean);
DROP FUNCTION IF EXISTS "public".find_messages_by_words(
    text, text, uuid, text, text[], timestamptz, timestamptz, integer);
DROP FUNCTION IF EXISTS "public".recall_by_vector(
    text, text, text, integer, text, text, text[], text, timestamptz, timestamptz, integer, boolean);
DROP FUNCTION IF EXISTS "public".store_vectors(text[], text[], bigint[], bigint[], text, text[]);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0040_recall.sql', 40, '8035efaf383bd27904b19787288834c4472a7dd7533adb37aec595d1b2d578eb', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0043_notify_after_commit.sql
-- Whether an append notifies in its transaction is an argument of the append functions.
DROP FUNCTION IF EXISTS "public".append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint, bigint, bigint, text, integer);
DROP FUNCTION IF EXISTS "public".append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[], bigint[], bigint[], text[], integer[]);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0043_notify_after_commit.sql', 43, '63f1311607344af9b92f0d15f9f6ac8030ddd02c1dbaf160695e4630df875af4', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0054_graph_checkpoints.sql
-- Checkpoints of LangGraph. The names differ from those of LangGraph's own tables, which may be in the same schema.

-- graph_namespaces: a thread of a graph and one namespace in it ('' is the graph itself, others are its subgraphs). The
-- thread id is any text of the caller; if it is the id of a row of `threads`, the deletion of that row deletes it.
CREATE TABLE IF NOT EXISTS "public".graph_namespaces (
    id             bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    app_name       text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    thread_id      text NOT NULL,
    checkpoint_ns  text NOT NULL
);

CREATE UNIQUE INDEX IF NOT EXISTS graph_namespaces_key
    ON "public".graph_namespaces (md5(thread_id), app_name, md5(checkpoint_ns));

-- graph_checkpoints: the document of a checkpoint without its large values. `channels` and `versions` name the values in
-- `graph_channels`; `inlined` names the channels whose value is in the document. `written_by` is the version of the
-- serializer. The C collation sorts ids by time in every database.
CREATE TABLE IF NOT EXISTS "public".graph_checkpoints (
    namespace_id   bigint NOT NULL REFERENCES "public".graph_namespaces (id) ON DELETE CASCADE,
    checkpoint_id  text COLLATE "C" NOT NULL CHECK (octet_length(checkpoint_id) BETWEEN 1 AND 1000),
    parent_id      text COLLATE "C",
    app_name       text NOT NULL,
    run_id         text,
    type           text NOT NULL,
    checkpoint     bytea NOT NULL,
    metadata       jsonb NOT NULL DEFAULT '{}',
    channels       text[] NOT NULL,
    versions       text[] NOT NULL,
    inlined        text[] NOT NULL,
    written_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace_id, checkpoint_id)
);

CREATE INDEX IF NOT EXISTS idx_graph_checkpoints_run
    ON "public".graph_checkpoints (app_name, md5(run_id)) WHERE run_id IS NOT NULL;

-- graph_channels: the value of a channel at a version, stored once for all checkpoints that have it.
CREATE TABLE IF NOT EXISTS "public".graph_channels (
    namespace_id   bigint NOT NULL REFERENCES "public".graph_namespaces (id) ON DELETE CASCADE,
    channel        text NOT NULL,
    version        text NOT NULL,
    app_name       text NOT NULL,
    type           text NOT NULL,
    value          bytea NOT NULL
);

CREATE UNIQUE INDEX IF NOT EXISTS graph_channels_key
    ON "public".graph_channels (namespace_id, md5(channel), version);

-- graph_writes: what tasks wrote after a checkpoint. They may be stored before their checkpoint is.
CREATE TABLE IF NOT EXISTS "public".graph_writes (
    namespace_id   bigint NOT NULL REFERENCES "public".graph_namespaces (id) ON DELETE CASCADE,
    checkpoint_id  text COLLATE "C" NOT NULL CHECK (octet_length(checkpoint_id) BETWEEN 1 AND 1000),
    task_id        text COLLATE "C" NOT NULL CHECK (octet_length(task_id) <= 1000),
    position       integer NOT NULL,
    task_path      text COLLATE "C" NOT NULL DEFAULT '',
    app_name       text NOT NULL,
    channel        text NOT NULL,
    type           text NOT NULL,
    value          bytea NOT NULL,
    PRIMARY KEY (namespace_id, checkpoint_id, task_id, position)
);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0054_graph_checkpoints.sql', 54, 'd76fe4b540f766dcb3984d8ec9fcbb21db466300df3183d593fec058cc37d723', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0058_hidden_events.sql
-- Events that a conversation has removed, and the exact messages of frameworks that keep conversations as trees.

-- hidden_events: ranges of events that a branch does not contain any more, because its conversation was shortened. The
-- log keeps the events. A branch that was forked before keeps its own view: `write_number` orders the two.
CREATE TABLE IF NOT EXISTS "public".hidden_events (
    thread_id       uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    branch          integer NOT NULL,
    write_number    bigint NOT NULL DEFAULT nextval('"public".write_numbers'),
    app_name        text NOT NULL,
    first_sequence  bigint NOT NULL,
    last_sequence   bigint NOT NULL,
    PRIMARY KEY (thread_id, branch, write_number)
);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0058_hidden_events.sql', 58, '38a466eee421e59da57131f549c72fe331d28d38e3aba71ddb295e55978d6510', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0062_artifacts.sql
-- artifact_blobs: the bytes of artifacts. `store` is null if the bytes are in `data`, else the identity of the store that
-- has them under the blob's id. The row is written before the bytes and removed after them, so no bytes are lost sight of.
CREATE TABLE IF NOT EXISTS "public".artifact_blobs (
    id            uuid PRIMARY KEY,
    app_name      text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    store         text,
    data          bytea,
    delete_after  timestamptz,
    is_deleting   boolean NOT NULL DEFAULT false,
    CHECK ((store IS NULL) = (data IS NOT NULL))
);

-- Images, audio and archives are compressed already, and ranges of an uncompressed value are read by themselves.
ALTER TABLE "public".artifact_blobs ALTER COLUMN data SET STORAGE EXTERNAL;

COMMENT ON COLUMN "public".artifact_blobs.delete_after IS
    'When no artifact refers to the blob (its upload has not ended, or its artifacts are deleted): the bytes are deleted then.';

CREATE INDEX IF NOT EXISTS idx_artifact_blobs_delete_after
    ON "public".artifact_blobs (delete_after) WHERE delete_after IS NOT NULL;

-- artifacts: one row for each version of a file of a session, or of a user (`session_id` is null).
CREATE TABLE IF NOT EXISTS "public".artifacts (
    id          uuid PRIMARY KEY,
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    session_id  text CHECK (session_id <> ''),
    filename    text NOT NULL CHECK (filename <> ''),
    version     integer NOT NULL,
    blob_id     uuid NOT NULL REFERENCES "public".artifact_blobs (id),
    mime_type   text,
    size        bigint NOT NULL,
    sha256      bytea NOT NULL,
    metadata    json NOT NULL DEFAULT '{}',
    attributes  json NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON COLUMN "public".artifacts.metadata IS 'Metadata of the caller.';
COMMENT ON COLUMN "public".artifacts.attributes IS 'What an adapter stores with the bytes, such as the form of an ADK part.';

CREATE UNIQUE INDEX IF NOT EXISTS artifacts_key
    ON "public".artifacts (app_name, user_id, md5(coalesce(session_id, '')), md5(filename), version);
CREATE INDEX IF NOT EXISTS idx_artifacts_blob_id ON "public".artifacts (blob_id);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0062_artifacts.sql', 62, '9030d61b8b6c4dba21fe14c42e14e6da113a85813937207d2c0cf77e6d5a042e', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0076_graph_items.sql
-- graph_items: the items of LangGraph's stores. `namespace` is the labels, each followed by a full stop, which no label
-- contains; the C collation sorts a namespace directly before the namespaces below it. `user_id` is the user that an item
-- belongs to, null for items of the app. An item with a `ttl` expires that long after its last write or refreshing read.
CREATE TABLE IF NOT EXISTS "public".graph_items (
    id          bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    namespace   text COLLATE "C" NOT NULL CHECK (octet_length(namespace) <= 1500),
    key         text NOT NULL,
    value       jsonb NOT NULL,
    ttl         interval,
    expires_at  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX IF NOT EXISTS graph_items_key ON "public".graph_items (app_name, namespace, md5(key));
CREATE INDEX IF NOT EXISTS idx_graph_items_user ON "public".graph_items (app_name, user_id) WHERE user_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_graph_items_expires_at ON "public".graph_items (expires_at) WHERE expires_at IS NOT NULL;

-- graph_item_vectors: one vector for each indexed text of an item. Only vectors of one model are compared.
CREATE TABLE IF NOT EXISTS "public".graph_item_vectors (
    item_id    bigint NOT NULL REFERENCES "public".graph_items (id) ON DELETE CASCADE,
    position   integer NOT NULL,
    app_name   text NOT NULL,
    model      text NOT NULL,
    embedding  halfvec NOT NULL,
    PRIMARY KEY (item_id, position)
);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0076_graph_items.sql', 76, '9cc9b73e6e63999d1c439a5713e6c5bf14363cd410b5690a9a2904cfba4c0439', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0077_conversation_store.sql
-- Conversations of Pydantic AI's ConversationStore: entries, each with one message and the entry before it, and a record for
-- each conversation that points at its last entry. Forks share entries.

-- conversation_entries: `root_id` is the first entry of the history, which all entries that follow from it share.
CREATE TABLE IF NOT EXISTS "public".conversation_entries (
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    id          text NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 1000),
    parent_id   text,
    root_id     text NOT NULL,
    kind        text NOT NULL,
    message     json NOT NULL,
    written_by  text NOT NULL,
    PRIMARY KEY (app_name, id)
);

CREATE INDEX IF NOT EXISTS idx_conversation_entries_root ON "public".conversation_entries (app_name, root_id);

-- conversation_records: `user_id` is the scope of the conversation. `roots` are the roots of its head and its branches.
CREATE TABLE IF NOT EXISTS "public".conversation_records (
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

COMMENT ON COLUMN "public".conversation_records.document IS 'Usage, open tool requests, the origin of a fork and the format.';

CREATE UNIQUE INDEX IF NOT EXISTS conversation_records_key
    ON "public".conversation_records (app_name, md5(conversation_id));
CREATE INDEX IF NOT EXISTS idx_conversation_records_updated_at
    ON "public".conversation_records (app_name, user_id, updated_at DESC);
CREATE INDEX IF NOT EXISTS idx_conversation_records_roots ON "public".conversation_records USING gin (roots);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0077_conversation_store.sql', 77, '1ee6b92d0f49bbf69a57c223c095bfe01fac2f14bf0c60c1cd7272e6ee927328', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0078_append_to_session.sql
-- The function returns the sequence numbers and times of its events now, and another row type needs another function.
DROP FUNCTION IF EXISTS "public".append_to_session(
    text, text, text, uuid, text[], text[], text[], text[], text[], text[], text[], text, boolean, text, integer);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0078_append_to_session.sql', 78, 'f59733325b9a94c33fd5e815f895fc0fcbf5d3d642cac59d73d15c036c59edf0', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0081_open_questions.sql
-- Whether a new run withdraws the questions of a waiting run is an argument of begin_hosted_run; it was p_has_text.
DROP FUNCTION IF EXISTS "public".begin_hosted_run(
    uuid, text, text, text, json, integer, text, interval, text, text[], boolean);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0081_open_questions.sql', 81, '792685f587b5dcd6e2152900fe8f929b32ee118aba0cb26df639464e2da2d3f7', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0085_shared_limits.sql
-- shared_buckets: the token bucket of each caller, shared by all processes that serve requests. `caller` is a digest.
-- Unlogged, as the next table: after a crash or a failover all callers begin with a full bucket.
CREATE UNLOGGED TABLE IF NOT EXISTS "public".shared_buckets (
    caller    text PRIMARY KEY,
    level     double precision NOT NULL,
    level_at  timestamptz NOT NULL
);

-- shared_streams: how many streams a caller has open in a process.
CREATE UNLOGGED TABLE IF NOT EXISTS "public".shared_streams (
    caller      text NOT NULL,
    process_id  uuid NOT NULL,
    streams     integer NOT NULL,
    seen_at     timestamptz NOT NULL,
    PRIMARY KEY (caller, process_id)
);

CREATE INDEX IF NOT EXISTS idx_shared_streams_seen_at ON "public".shared_streams (seen_at);
CREATE INDEX IF NOT EXISTS idx_shared_buckets_level_at ON "public".shared_buckets (level_at);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0085_shared_limits.sql', 85, '3252ab5696f9b0f51a1d62921c11b5bd61d757df8c0cec3982dc1d1d87cb515c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0089_run_times.sql
-- The times from which the delay of a claim and the duration of a wait are measured.
ALTER TABLE "public".runs
    ADD COLUMN IF NOT EXISTS claimable_since timestamptz,
    ADD COLUMN IF NOT EXISTS waiting_since timestamptz;

COMMENT ON COLUMN "public".runs.claimable_since IS 'When the run became claimable, set by its last claim: its creation, or available_at.';
COMMENT ON COLUMN "public".runs.waiting_since IS 'When its current wait began, or its last one.';

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0089_run_times.sql', 89, '588eeb62cd7ca1c00db8cf8e1095a06f532658890a9e78b0663ed2f0313ae5cd', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0090_token_usage.sql
-- token_usage: the tokens of one call of a model, counted once per `id` and thread: the id of the event that reports them, or
-- the id that the caller gave. `input_tokens` and `output_tokens` are totals; the other counts are parts of them.
CREATE TABLE IF NOT EXISTS "public".token_usage (
    thread_id           uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
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

CREATE UNIQUE INDEX IF NOT EXISTS token_usage_thread_id_id ON "public".token_usage (thread_id, md5(id));
CREATE INDEX IF NOT EXISTS idx_token_usage_user ON "public".token_usage (app_name, user_id, created_at);
CREATE INDEX IF NOT EXISTS idx_token_usage_app ON "public".token_usage (app_name, created_at);

-- The usage that an event reports is an argument of the append functions.
DROP FUNCTION IF EXISTS "public".append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint, bigint, bigint, text, integer, boolean);
DROP FUNCTION IF EXISTS "public".append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[], bigint[], bigint[], text[], integer[], boolean);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0090_token_usage.sql', 90, '9ab8cce57fa8426eb2dcc569efc5a18dd6e7f70d827824e36724a68ff12cf504', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0091_traceparent.sql
-- The position in a trace at which a run was created (W3C traceparent): every attempt continues it, in any process.
ALTER TABLE "public".runs ADD COLUMN IF NOT EXISTS traceparent text;

DROP FUNCTION IF EXISTS "public".create_run(
    uuid, text, text, text, json, integer, timestamptz, text, interval, text, json, text, integer);
DROP FUNCTION IF EXISTS "public".begin_hosted_run(
    uuid, text, text, text, json, integer, text, interval, text, text[], boolean);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0091_traceparent.sql', 91, '94bc026c72d5dcd1e80a592ca118f52bc02c6cc61866e67f82a3e44d1f828297', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0093_schedules.sql
-- schedules: runs that are created at times of a cron expression in a time zone, or at an interval. `thread_id` is the thread of
-- all its runs; null: each run gets a session of its own. `next_at` is the next due time; a firing moves it forward.
CREATE TABLE IF NOT EXISTS "public".schedules (
    id              uuid PRIMARY KEY,
    app_name        text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id         text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    thread_id       uuid REFERENCES "public".threads (id) ON DELETE CASCADE,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 1000),
    handler         text NOT NULL CHECK (octet_length(handler) BETWEEN 1 AND 1000),
    input           json NOT NULL DEFAULT 'null',
    max_attempts    integer NOT NULL CHECK (max_attempts > 0),
    cron            text,
    every           interval CHECK (every > interval '0'),
    timezone        text NOT NULL DEFAULT 'UTC',
    catch_up        text NOT NULL DEFAULT 'one' CHECK (catch_up IN ('skip', 'one', 'all')),
    catch_up_limit  integer NOT NULL DEFAULT 100 CHECK (catch_up_limit > 0),
    next_at         timestamptz NOT NULL,
    paused_at       timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((cron IS NULL) <> (every IS NULL))
);

CREATE UNIQUE INDEX IF NOT EXISTS schedules_name ON "public".schedules (app_name, user_id, name);
CREATE INDEX IF NOT EXISTS idx_schedules_next_at ON "public".schedules (next_at) WHERE paused_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_schedules_thread ON "public".schedules (thread_id) WHERE thread_id IS NOT NULL;

-- schedule_firings: one row for each due time for which a run was created. The primary key makes a second firing impossible.
-- A row is deleted with its run.
CREATE TABLE IF NOT EXISTS "public".schedule_firings (
    schedule_id  uuid NOT NULL REFERENCES "public".schedules (id) ON DELETE CASCADE,
    due_at       timestamptz NOT NULL,
    app_name     text NOT NULL,
    thread_id    uuid NOT NULL,
    run_id       text NOT NULL,
    fired_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, due_at),
    FOREIGN KEY (thread_id, run_id) REFERENCES "public".runs (thread_id, id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_schedule_firings_run ON "public".schedule_firings (thread_id, run_id);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0093_schedules.sql', 93, 'f4e6fdb6554c16ca895290c9235ed027d7e0350dfd93323a3f48a95312bf51bf', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0094_queues.sql
-- Runs of one queue share its limits; '' is the queue that has the name of the run's handler. Higher priorities are claimed first.
ALTER TABLE "public".runs
    ADD COLUMN IF NOT EXISTS queue text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS priority integer NOT NULL DEFAULT 0;

ALTER TABLE "public".schedules
    ADD COLUMN IF NOT EXISTS queue text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS priority integer NOT NULL DEFAULT 0;

-- Claims step from one combination of queue and priority to the next, and read each in the order of its due times.
CREATE INDEX IF NOT EXISTS idx_runs_claim
    ON "public".runs (handler, queue, (-priority), greatest(created_at, available_at), id) WHERE status = 'pending';
DROP INDEX IF EXISTS "public".idx_runs_due;

-- run_queues: the limits of a queue, over all processes. `concurrency` limits running runs, `rate` limits claims per `period`:
-- a bucket of `rate` tokens, which had `tokens` at `refilled_at`. A null limit does not exist.
CREATE TABLE IF NOT EXISTS "public".run_queues (
    name         text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 1000),
    concurrency  integer CHECK (concurrency >= 0),
    rate         integer CHECK (rate > 0),
    period       interval NOT NULL DEFAULT interval '1 second' CHECK (period > interval '0'),
    tokens       double precision NOT NULL DEFAULT 0,
    refilled_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The arguments have changed.
DROP FUNCTION IF EXISTS "public".create_run(
    uuid, text, text, text, json, integer, timestamptz, text, interval, text, json);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0094_queues.sql', 94, 'b3e21eb3a276b4606ba3ec336099b8f4388d059dc7baa5fb24b5b9cf8defe337', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0095_webhooks.sql
-- webhooks: URLs that are called when a run of an app waits for a person, fails or completes.
CREATE TABLE IF NOT EXISTS "public".webhooks (
    id          uuid PRIMARY KEY,
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    url         text NOT NULL,
    events      text[] NOT NULL CHECK (events <@ '{waiting,failed,completed}' AND cardinality(events) > 0),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS idx_webhooks_app ON "public".webhooks (app_name);

-- webhook_secrets: the keys of the signatures. A table of its own without app_name: the role of tenants has no right to read it.
CREATE TABLE IF NOT EXISTS "public".webhook_secrets (
    webhook_id  uuid PRIMARY KEY REFERENCES "public".webhooks (id) ON DELETE CASCADE,
    secret      bytea NOT NULL
);

-- webhook_deliveries: calls that are not answered yet, written in the transaction of the run's change. `due_at` is the time of the
-- next attempt; while an attempt is made, it is the end of the lease of the sender. A delivery that failed too often has `dead_at`.
CREATE TABLE IF NOT EXISTS "public".webhook_deliveries (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    webhook_id  uuid NOT NULL REFERENCES "public".webhooks (id) ON DELETE CASCADE,
    app_name    text NOT NULL,
    thread_id   uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    run_id      text NOT NULL,
    event       text NOT NULL,
    payload     json NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_at     timestamptz,
    last_error  text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_due ON "public".webhook_deliveries (due_at) WHERE dead_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_dead ON "public".webhook_deliveries (dead_at) WHERE dead_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_thread ON "public".webhook_deliveries (thread_id);
CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_webhook ON "public".webhook_deliveries (webhook_id);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0095_webhooks.sql', 95, 'd561abb5413a1ae91b367a461edf6825e6990a94eb936e5168ba4c07581485b4', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0096_user_tables.sql
-- The result of the function has changed.
DROP FUNCTION IF EXISTS "public".user_tables();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0096_user_tables.sql', 96, '37fc2ca7d6688f3b8d64a7d5ec1407ab5e11a8bc7623438ad0a1d193c73dd94f', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0098_memory_filters.sql
-- What memories are filtered by, and what upkeep records about them. `labels` are index keys of tags, metadata and sources:
-- hashes that contain the user, as in `terms`, so a posting list never holds rows of two users.
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS tags text[] NOT NULL DEFAULT '{}';
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS metadata jsonb NOT NULL DEFAULT '{}';
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS labels bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS sources jsonb;
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS importance real CHECK (importance BETWEEN 0 AND 1);
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS expires_at timestamptz;
ALTER TABLE "public".memories ADD COLUMN IF NOT EXISTS duplicate_of bigint;

COMMENT ON COLUMN "public".memories.labels IS 'Index keys of tags, metadata and sources (memory_labels).';
COMMENT ON COLUMN "public".memories.sources IS 'The events that a fact or an episode came from: [{"session_id", "event_id"}].';
COMMENT ON COLUMN "public".memories.duplicate_of IS 'The memory that recall returns in place of this one.';

CREATE INDEX IF NOT EXISTS idx_memories_labels ON "public".memories USING gin (labels) WITH (fastupdate = off)
    WHERE labels <> '{}';
-- These do not begin with the user: on a table without statistics the planner would take them in place of the primary key.
CREATE INDEX IF NOT EXISTS idx_memories_kind ON "public".memories (kind, app_name, user_id, created_at);
CREATE INDEX IF NOT EXISTS idx_memories_namespace ON "public".memories (md5(namespace), app_name, user_id, created_at)
    WHERE namespace <> '';
CREATE INDEX IF NOT EXISTS idx_memories_expires_at ON "public".memories (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_memories_duplicate_of ON "public".memories (duplicate_of, app_name, user_id)
    WHERE duplicate_of IS NOT NULL;

-- memory_metadata: the numbers and texts of `metadata`, for ranges. Texts are compared by code point, as by jsonpath.
CREATE TABLE IF NOT EXISTS "public".memory_metadata (
    app_name    text NOT NULL,
    user_id     text NOT NULL,
    memory_id   bigint NOT NULL,
    name        text NOT NULL,
    number      numeric,
    text        text COLLATE "C",
    PRIMARY KEY (memory_id, app_name, user_id, name),
    FOREIGN KEY (app_name, user_id, memory_id) REFERENCES "public".memories (app_name, user_id, id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_memory_metadata_number ON "public".memory_metadata (name, app_name, user_id, number)
    INCLUDE (memory_id) WHERE number IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_memory_metadata_text ON "public".memory_metadata (name, app_name, user_id, text)
    INCLUDE (memory_id) WHERE text IS NOT NULL;

-- memory_filter: the filters of a recall; a null attribute matches everything. `ranges` has all ranges of metadata; of one of
-- them `range_name` and its lower and upper bound, for the index: numbers or texts, each of which may be null. memory_details: optional columns of a memory.
DO $$
BEGIN
    CREATE TYPE "public".memory_filter AS (
        agent_id text, kinds text[], namespace text, since timestamptz, until timestamptz, tags text[], metadata jsonb,
        ranges jsonpath,
        range_name text, range_numbers numeric[], range_texts text[]);
    CREATE TYPE "public".memory_details AS (
        tags text[], metadata jsonb, sources jsonb, importance real, expires_at timestamptz);
EXCEPTION WHEN duplicate_object THEN
    NULL;
END
$$;

-- Functions whose arguments or result columns change: PostgreSQL would refuse the new one, or keep both.
DROP FUNCTION IF EXISTS "public".memory_neighbours(
    text, text, text, text[], text, timestamptz, timestamptz, bigint[]);
DROP FUNCTION IF EXISTS "public".recall_by_words(
    text, text, text, text, text, text[], text, timestamptz, timestamptz, integer, boolean);
DROP FUNCTION IF EXISTS "public".recall_by_vector(
    text, text, text, integer, text, text, text[], text, timestamptz, timestamptz, integer, boolean, bigint[]);
DROP FUNCTION IF EXISTS "public".find_by_frequent_terms(
    text, text, bigint[], text, text[], text, timestamptz, timestamptz, integer, integer);
DROP FUNCTION IF EXISTS "public".store_memories(
    text, text, text, text[], text[], text[], text[], bigint[], text[], text[], text[], text[], timestamptz[], boolean);
DROP FUNCTION IF EXISTS "public".memory_passes(
    "public".memories, text, text[], text, timestamptz, timestamptz);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0098_memory_filters.sql', 98, '6bd137a4510f7ae1764b9a360dc713261a93bbdfd7b1fdc1283754556af7a61e', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0099_memory_upkeep.sql
-- agent_long_term_history: values of facts that a newer value replaced. A value was valid from `valid_from` to `valid_until`.
CREATE TABLE IF NOT EXISTS "public".agent_long_term_history (
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
    ON "public".agent_long_term_history (app_name, user_id, agent_id, md5(namespace), md5(key), valid_from);
CREATE INDEX IF NOT EXISTS idx_agent_long_term_history_valid_until ON "public".agent_long_term_history (valid_until);

ALTER TABLE "public".agent_long_term_memory ADD COLUMN IF NOT EXISTS sources jsonb;
COMMENT ON COLUMN "public".agent_long_term_memory.sources IS 'The events that the value came from: [{"session_id", "event_id"}].';

-- memory_consolidations: how far a session is consolidated into episodes and facts, for each agent.
CREATE TABLE IF NOT EXISTS "public".memory_consolidations (
    thread_id      uuid NOT NULL REFERENCES "public".threads (id) ON DELETE CASCADE,
    agent_id       text NOT NULL,
    app_name       text NOT NULL,
    last_sequence  bigint NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, agent_id)
);

-- A duplicate is recalled again when the memory that stood for it is deleted.
ALTER TABLE "public".memories DROP CONSTRAINT IF EXISTS memories_duplicate_of;
ALTER TABLE "public".memories ADD CONSTRAINT memories_duplicate_of FOREIGN KEY (app_name, user_id, duplicate_of)
    REFERENCES "public".memories (app_name, user_id, id) ON DELETE SET NULL (duplicate_of);

-- Functions whose arguments change: PostgreSQL would keep both.
DROP FUNCTION IF EXISTS "public".set_long_term_memory(text, text, text, text, text, jsonb, text, text, boolean);
DROP FUNCTION IF EXISTS "public".append_episode(
    text, text, text, text, text, text, text, jsonb, timestamptz, text, text, boolean);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0099_memory_upkeep.sql', 99, '05dca5fe0d9f5203d060e2967628b2e6cd2b302b89e449a8f4551924a96b6064', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0110_call_streams.sql
-- The arguments of a tool call are streamed like a text, to be followed from other processes. They are no message: the event
-- that such a stream becomes is an act.
ALTER TABLE "public".message_streams DROP CONSTRAINT IF EXISTS message_streams_role_check;
ALTER TABLE "public".message_streams ADD CONSTRAINT message_streams_role_check
    CHECK (role IN ('user', 'assistant', 'tool', 'system', 'thought', 'call'));

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0110_call_streams.sql', 110, 'b17c53f1a7b366224907eb6f4438d1f801b59210c55e9b2e1b5fc010d389babe', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0140_append_to_sessions.sql
-- The function has the argument p_wait now, and two functions of one name with defaults would be ambiguous.
DROP FUNCTION IF EXISTS "public".append_to_session(
    text, text, text, uuid, text[], text[], text[], text[], text[], text[], text[], text, boolean, text, integer, boolean);

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0140_append_to_sessions.sql', 140, '8a5e7fc6a4b2766e6d1c1d3f4dc644a35795e8e840e416b9409e614bd83f547a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0150_consolidation_batches.sql
-- The last message of the batch that is processed next: a repetition and a consolidation at the same time form the same batch.
ALTER TABLE "public".memory_consolidations ADD COLUMN IF NOT EXISTS planned_sequence bigint NOT NULL DEFAULT 0;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0150_consolidation_batches.sql', 150, '8f9626a41e1f1ca487f509a3006e168c0a8b48adcc1c2cfbca70661c11adde09', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- 0151_fact_validity.sql
-- From when the value is valid; `updated_at` is its last confirmation. Null for facts that an older version stored: `updated_at`.
ALTER TABLE "public".agent_long_term_memory ADD COLUMN IF NOT EXISTS valid_from timestamptz;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('0151_fact_validity.sql', 151, 'eed1dc5c321acefe494a6fb57931fac20d81107ed9243c73da171b40e2b96da5', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- views/run_rows.sql
-- A run as the engine reads it: the one list of its columns, documents as text. Rows are visible to the caller as in `runs`.
CREATE OR REPLACE VIEW "public".run_rows WITH (security_invoker = true) AS
SELECT thread_id, id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at, handler, input::text AS input, result::text AS result, worker_id, attempt,
       failures, max_attempts, available_at, lease_expires_at, wait_kind, wait_key, wait_reason, wait_expires_at,
       wait_timeout_node, resumption_context::text AS resumption_context, claimable_since, waiting_since,
       queue, priority, traceparent
  FROM "public".runs;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('views/run_rows.sql', 0, '8fe1e1550e0519ae4867ed3c0edc1062bf2b0040cc1ee088a4954915de889125', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- access/exchange_limits.sql
-- Takes the tokens that a process gave to callers out of their shared buckets and notes the streams that they have open
-- there. Returns the level of each bucket and the streams in other processes, by the place of the caller. A level may be
-- negative: processes give tokens before they know of each other. Streams of a process that was not seen for 10 seconds
-- do not count.
CREATE OR REPLACE FUNCTION "public".exchange_limits(
    p_process_id uuid, p_callers text[], p_taken double precision[], p_rates double precision[],
    p_sizes double precision[], p_streams integer[]
) RETURNS TABLE (place integer, level double precision, streams integer) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH asked AS (
        -- In one order, so that two processes do not wait for each other.
        SELECT * FROM unnest(p_callers, p_taken, p_rates, p_sizes, p_streams) WITH ORDINALITY
               AS asked (caller, taken, rate, size, streams, place) ORDER BY caller
    ), changed AS (
        INSERT INTO "public".shared_buckets AS b (caller, level, level_at)
        SELECT a.caller, a.size - a.taken, v_now FROM asked a ORDER BY a.caller
        ON CONFLICT (caller) DO UPDATE SET level = greatest(
            least((SELECT a.size FROM asked a WHERE a.caller = b.caller),
                  b.level + greatest(extract(epoch FROM v_now - b.level_at), 0)
                            * (SELECT a.rate FROM asked a WHERE a.caller = b.caller))
            - (SELECT a.taken FROM asked a WHERE a.caller = b.caller),
            - (SELECT a.size FROM asked a WHERE a.caller = b.caller)), level_at = v_now
        RETURNING b.caller, b.level
    ), noted AS (
        INSERT INTO "public".shared_streams AS s (caller, process_id, streams, seen_at)
        SELECT a.caller, p_process_id, a.streams, v_now FROM asked a ORDER BY a.caller
        ON CONFLICT (caller, process_id) DO UPDATE SET streams = EXCLUDED.streams, seen_at = v_now
    )
    SELECT a.place::integer, c.level,
           coalesce((SELECT sum(s.streams) FROM "public".shared_streams s
                      WHERE s.caller = a.caller AND s.process_id <> p_process_id
                        AND s.seen_at > v_now - interval '10 seconds'), 0)::integer
      FROM asked a JOIN changed c ON c.caller = a.caller;
    DELETE FROM "public".shared_streams s WHERE s.seen_at < v_now - interval '1 minute';
    DELETE FROM "public".shared_buckets b WHERE b.level_at < v_now - interval '1 hour';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('access/exchange_limits.sql', 0, '4cd115029b9d9629820db5001543fdf4145d8a78553cb6e2eb74f42de705f2d6', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- access/notify_key_change.sql
-- Notifies every process of the id of a changed key, so that it drops the key from its cache.
CREATE OR REPLACE FUNCTION "public".notify_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changed', OLD.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER notify_key_change
AFTER DELETE OR UPDATE OF secret_hash, app_names, user_id, permissions, expires_at, revoked_at ON "public".api_keys
FOR EACH ROW EXECUTE FUNCTION "public".notify_key_change();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('access/notify_key_change.sql', 0, 'af1573026ab6a68ab379702e89e6c051bf9ee16ffc38e0bb5b15cfc8fd84edc3', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- access/protect_tenants.sql
-- Row level security. The server has the role `cognizes_server` while it serves a caller that belongs to some apps. The
-- role owns nothing, and sees only rows of the apps that `enter_tenant` set in this transaction. Other roles (the engine
-- itself, users of psql) have the policy `true`, which the planner drops, so that it costs nothing.

-- Sets the apps whose rows are visible until the transaction ends. Queries call it in a lateral join on which their scans
-- depend, so that no scan starts before.
CREATE OR REPLACE FUNCTION "public".enter_tenant(p_apps text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('cognizes.apps', p_apps::text, true);
    RETURN true;
END
$$;

-- Returns the apps of this transaction; none before `enter_tenant`.
CREATE OR REPLACE FUNCTION "public".tenant_apps() RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('cognizes.apps', true), ''), '{}')::text[]
$$;

-- Creates the role, the grants and the policies of every table that has an app_name. It is called after every migration, so
-- that it covers new tables. Returns false where the role does not exist and may not be created.
-- The engine's own user takes the role and must not inherit it: policies for a role apply to every role that inherits it,
-- and the engine would see no rows. Where it inherits the role all the same, its tables are not forced, which only
-- concerns their owner.
CREATE OR REPLACE FUNCTION "public".protect_tenants() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_table record;
    v_is_superuser boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cognizes_server') THEN
        BEGIN
            CREATE ROLE cognizes_server NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
        EXCEPTION
            WHEN insufficient_privilege THEN
                RETURN false;
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- created at the same moment by another database of this server
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'cognizes_server', 'SET')
       OR NOT v_is_superuser AND pg_has_role(current_user, 'cognizes_server', 'USAGE') THEN
        BEGIN
            EXECUTE format('GRANT cognizes_server TO %I WITH INHERIT FALSE, SET TRUE', current_user);
        EXCEPTION WHEN insufficient_privilege OR invalid_grant_operation THEN
            NULL; -- then COGNIZES_TENANT_URL must name a member of the role
        END;
    END IF;
    -- A superuser may migrate for an engine that may not create roles: the owner of the tables may take the role, too.
    FOR v_table IN
        SELECT owner.rolname AS name
          FROM pg_class c
          JOIN pg_roles owner ON owner.oid = c.relowner AND owner.rolname <> current_user AND NOT owner.rolsuper
         WHERE c.oid = '"public".threads'::regclass AND NOT pg_has_role(owner.oid, 'cognizes_server', 'SET')
    LOOP
        BEGIN
            EXECUTE format('GRANT cognizes_server TO %I WITH INHERIT FALSE, SET TRUE', v_table.name);
        EXCEPTION WHEN insufficient_privilege OR invalid_grant_operation THEN
            NULL; -- then COGNIZES_TENANT_URL must name a member of the role
        END;
    END LOOP;
    GRANT USAGE ON SCHEMA "public" TO cognizes_server;
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = '"public".write_numbers'::regclass), 'USAGE') THEN
        GRANT USAGE ON SEQUENCE "public".write_numbers TO cognizes_server;
    END IF;
    FOR v_table IN
        SELECT c.oid::regclass AS name, c.oid, c.relrowsecurity AS is_protected, c.relforcerowsecurity AS is_forced,
               owner.rolsuper OR NOT pg_has_role(owner.oid, 'cognizes_server', 'USAGE') AS may_be_forced
          FROM pg_class c
          JOIN pg_roles owner ON owner.oid = c.relowner
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'app_name' AND NOT a.attisdropped
         WHERE c.relnamespace = '"public"'::regnamespace AND c.relkind IN ('r', 'p')
           AND pg_has_role(c.relowner, 'USAGE')
         ORDER BY c.relname
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO cognizes_server', v_table.name);
        IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = v_table.oid AND polname = 'all_roles') THEN
            EXECUTE format('CREATE POLICY all_roles ON %s USING (true)', v_table.name);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = v_table.oid AND polname = 'tenant') THEN
            -- The sub-select is computed once per scan, not once per row.
            EXECUTE format(
                'CREATE POLICY tenant ON %s AS RESTRICTIVE TO cognizes_server '
                'USING (app_name = ANY ((SELECT "public".tenant_apps())::text[]))', v_table.name);
        END IF;
        IF NOT v_table.is_protected OR v_table.is_forced <> v_table.may_be_forced THEN
            EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, %s FORCE ROW LEVEL SECURITY', v_table.name,
                           CASE WHEN v_table.may_be_forced THEN '' ELSE 'NO' END);
        END IF;
    END LOOP;
    -- A view reads with the rights of its caller (`security_invoker`), so the policies of its tables hold.
    FOR v_table IN
        SELECT c.oid::regclass AS name FROM pg_class c
         WHERE c.relnamespace = '"public"'::regnamespace AND c.relkind = 'v' AND pg_has_role(c.relowner, 'USAGE')
           AND 'security_invoker=true' = ANY (c.reloptions)
    LOOP
        EXECUTE format('GRANT SELECT ON %s TO cognizes_server', v_table.name);
    END LOOP;
    RETURN true;
END
$$;

SELECT "public".protect_tenants();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('access/protect_tenants.sql', 0, '877b1fb21f7a51261045ed4686e98112ed056333569d12a3dcaccc4a6d86c230', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- access/prune_audit_log.sql
-- Deletes up to p_limit entries of the audit log that are older than an age. Returns the number of deleted rows.
CREATE OR REPLACE FUNCTION "public".prune_audit_log(p_age interval, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH old AS (
        SELECT app_name, created_at, id FROM "public".audit_log
         WHERE created_at < now() - p_age LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM "public".audit_log a USING old
         WHERE a.app_name = old.app_name AND a.created_at = old.created_at AND a.id = old.id
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('access/prune_audit_log.sql', 0, 'd0492b2f99094db91a40cc628639c0b3f0364ca3a559f2628109637df409ad6c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- access/use_api_key.sql
-- Returns the key with this id and secret if it is valid. Writes the time of its use at most once a minute: requests that
-- all update one row would wait for each other.
CREATE OR REPLACE FUNCTION "public".use_api_key(p_id text, p_secret_hash bytea)
RETURNS SETOF "public".api_keys LANGUAGE plpgsql AS $$
DECLARE
    v_key "public".api_keys;
BEGIN
    SELECT * INTO v_key FROM "public".api_keys k
     WHERE k.id = p_id AND k.secret_hash = p_secret_hash AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_key.last_used_at IS NULL OR v_key.last_used_at < clock_timestamp() - interval '1 minute' THEN
        UPDATE "public".api_keys k SET last_used_at = clock_timestamp()
         WHERE k.id = p_id AND k.ctid = (SELECT ctid FROM "public".api_keys WHERE id = p_id FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN NEXT v_key;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('access/use_api_key.sql', 0, 'ec94a227a042df6d8ca3f21644475f69277c80f8c1fb4b2378e0d30942cbce51', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- adk/adk_event_time.sql
-- Returns the time of an ADK event, in seconds since 1970; of other events the time at which they were stored.
-- Reads the first bytes of the text, for the reason given in `is_conversation`.
CREATE OR REPLACE FUNCTION "public".adk_event_time(p_content text, p_created_at timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(
        substring(left(p_content, 120) FROM '^\s*\{\s*"adk"\s*:\s*\{\s*"timestamp"\s*:\s*([-+.0-9eE]+)')::double precision,
        extract(epoch FROM p_created_at)::double precision)
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('adk/adk_event_time.sql', 0, 'e0345b88934f64a327e8e94d9e308c7beeb0490294f641e06b02d51433f328cf', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- adk/adk_list_sessions.sql
-- Returns the sessions of a user (null: of all users of the app), each with the time of its last event, without an order.
-- Before them are rows without a thread: the states of the app (without a user) and of the users, once each, because they
-- may be large.
CREATE OR REPLACE FUNCTION "public".adk_list_sessions(p_app_name text, p_user_id text) RETURNS TABLE (
    thread_id uuid, session_id text, user_id text, version bigint, last_sequence bigint,
    last_update_time double precision, state text
) LANGUAGE plpgsql STABLE
-- The plan is the same for every user: it must suit a user with a hundred of a hundred thousand sessions.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT NULL::uuid, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::double precision, a.state::text
          FROM "public".app_states a WHERE a.app_name = p_app_name;
    RETURN QUERY
        SELECT NULL::uuid, NULL::text, u.user_id, NULL::bigint, NULL::bigint, NULL::double precision, u.state::text
          FROM "public".user_states u
         WHERE u.app_name = p_app_name
           AND u.user_id IN (SELECT p_user_id WHERE p_user_id IS NOT NULL
                             UNION
                             SELECT t.user_id FROM "public".threads t
                              WHERE t.app_name = p_app_name AND p_user_id IS NULL);
    -- Two arms: one condition for both cases could not use the index of the user, and would read all sessions of the app.
    RETURN QUERY
        SELECT t.id, t.session_id, t.user_id, t.version, t.last_sequence,
               coalesce(CASE WHEN t.last_sequence > 0 THEN
                             (SELECT "public".adk_event_time(e.content::text, e.created_at)
                                FROM "public".events e
                               WHERE e.thread_id = t.id
                                 AND "public".is_conversation(e.event_type, e.changes_state, e.content::text)
                               ORDER BY e.sequence_num DESC LIMIT 1) END,
                        extract(epoch FROM t.created_at)::double precision),
               t.state::text
          FROM (SELECT * FROM "public".threads
                 WHERE app_name = p_app_name AND user_id = p_user_id
                UNION ALL
                SELECT * FROM "public".threads WHERE p_user_id IS NULL AND app_name = p_app_name) t;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('adk/adk_list_sessions.sql', 0, 'e5c3994aab69f2a2a2433ad5d89579c8270dafdeb462ca5ee1f18168c961c61c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- adk/adk_read_session.sql
-- Returns a session for ADK: one row with its head and states, then its conversation, newest event first.
-- Of the thread p_known_thread only the events after p_known_sequence. With p_from_time only events from that time on, with
-- p_limit at most that many; with p_with_last_time also the time of the last event, even if that event is not returned.
-- Of a thread that has branches or removed events, all events of the active branch: the known events may not belong to it.
-- The id of the head's row is 'branched' then.
-- STABLE: all statements use one snapshot. The generic plan saves the planning, which takes longer than the reading.
CREATE OR REPLACE FUNCTION "public".adk_read_session(
    p_app_name text,
    p_user_id text,
    p_session_id text,
    p_known_thread uuid,
    p_known_sequence bigint,
    p_from_time double precision,
    p_limit bigint,
    p_with_last_time boolean
) RETURNS TABLE (
    thread_id uuid, version bigint, last_sequence bigint, thread_created_at timestamptz, state text, user_state text,
    app_state text, last_event_time double precision,
    sequence_num bigint, id text, invocation_id text, author text, event_type text, content text, actions text,
    created_at timestamptz
) LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    SELECT t.id, t.version, t.last_sequence, t.created_at, t.state::text,
           (SELECT u.state::text FROM "public".user_states u WHERE u.user_id = t.user_id AND u.app_name = t.app_name),
           (SELECT a.state::text FROM "public".app_states a WHERE a.app_name = t.app_name)
      INTO thread_id, version, last_sequence, thread_created_at, state, user_state, app_state
      FROM "public".threads t
     WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
       AND t.session_id = p_session_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_with_last_time THEN
        SELECT "public".adk_event_time(e.content::text, e.created_at) INTO last_event_time
          FROM "public".events e
         WHERE e.thread_id = adk_read_session.thread_id
           AND "public".is_conversation(e.event_type, e.changes_state, e.content::text)
         ORDER BY e.sequence_num DESC LIMIT 1;
    END IF;
    IF EXISTS (SELECT FROM "public".branch_segments s WHERE s.thread_id = adk_read_session.thread_id)
       OR EXISTS (SELECT FROM "public".hidden_events h WHERE h.thread_id = adk_read_session.thread_id) THEN
        id := 'branched';
        RETURN NEXT;
        RETURN QUERY
            SELECT NULL::uuid, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::text, NULL::text, NULL::text,
                   NULL::double precision, e.sequence_num, e.id, e.invocation_id, e.author, e.event_type,
                   e.content::text, e.actions::text, e.created_at
              FROM "public".branch_path(adk_read_session.thread_id, NULL) AS path
              JOIN "public".events e ON e.thread_id = adk_read_session.thread_id
               AND e.sequence_num BETWEEN path.first_sequence AND path.last_sequence
             WHERE "public".is_conversation(e.event_type, e.changes_state, e.content::text)
               AND (p_from_time IS NULL OR "public".adk_event_time(e.content::text, e.created_at) >= p_from_time)
             ORDER BY e.sequence_num DESC
             LIMIT p_limit;
        RETURN;
    END IF;
    RETURN NEXT;
    RETURN QUERY
        SELECT NULL::uuid, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::text, NULL::text, NULL::text,
               NULL::double precision, e.sequence_num, e.id, e.invocation_id, e.author, e.event_type, e.content::text,
               e.actions::text, e.created_at
          FROM "public".events e
         WHERE e.thread_id = adk_read_session.thread_id
           AND e.sequence_num > CASE WHEN adk_read_session.thread_id = p_known_thread
                                     THEN p_known_sequence ELSE 0 END
           AND "public".is_conversation(e.event_type, e.changes_state, e.content::text)
           AND (p_from_time IS NULL OR "public".adk_event_time(e.content::text, e.created_at) >= p_from_time)
         ORDER BY e.sequence_num DESC
         LIMIT p_limit;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('adk/adk_read_session.sql', 0, '5e43d808ae96a547424eb39856f3a01600e97179fe0d89d2fae4001528d4b5bf', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- archive/erase_user.sql
-- Return the name of an erased user in `memory_deletions`, from which the user cannot be read.
CREATE OR REPLACE FUNCTION "public".erased_name(p_app_name text, p_user_id text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'erased ' || encode(sha256(convert_to(p_app_name || chr(1) || p_user_id, 'UTF8')), 'hex')
$$;

-- Delete all rows of one user of an app in one transaction: sessions with everything that belongs to them, memories, state,
-- tickets, and API keys that are valid for this user and app alone. Entries of the audit log stay; the names of the user, of
-- the sessions and of the threads in them become a pseudonym. Returns the number of rows per table.
CREATE OR REPLACE FUNCTION "public".erase_user(p_app_name text, p_user_id text, p_pseudonym text)
RETURNS TABLE (table_name text, rows bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_table record;
    v_threads uuid[];
    v_names text[];
    v_keys text[];
BEGIN
    -- The lock of every writer of a user's memories: no writer stores a memory between the two deletions.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    -- A schedule that fires now creates its session before the threads are read; a locked one does not fire.
    PERFORM FROM "public".schedules WHERE app_name = p_app_name AND user_id = p_user_id ORDER BY id FOR UPDATE;
    SELECT coalesce(array_agg(t.id), '{}'), coalesce(array_agg(t.session_id), '{}')
      INTO v_threads, v_names
      FROM (SELECT id, session_id FROM "public".threads
             WHERE app_name = p_app_name AND user_id = p_user_id ORDER BY id FOR UPDATE) t;
    v_names := v_names || v_threads::text[] || p_user_id;
    FOR v_table IN SELECT * FROM "public".user_tables() LOOP
        table_name := v_table.name;
        EXECUTE format('SELECT count(*) FROM "public".%I r WHERE %s', v_table.name, v_table.condition)
           INTO rows USING p_app_name, p_user_id;
        IF rows > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    DELETE FROM "public".threads WHERE id = ANY (v_threads);
    -- Writers that read a session before still find that it was deleted, by a name that is not the user's.
    DELETE FROM "public".memory_deletions d
     WHERE d.app_name = p_app_name
       AND (d.user_id = "public".erased_name(p_app_name, p_user_id)
            OR d.user_id LIKE 'erased %' AND d.deleted_at < now() - interval '1 day');
    UPDATE "public".memory_deletions d SET user_id = "public".erased_name(p_app_name, p_user_id)
     WHERE d.app_name = p_app_name AND d.user_id = p_user_id;
    FOR v_table IN SELECT * FROM "public".user_tables() WHERE name <> 'threads' LOOP
        IF v_table.key = 'user_id' THEN
            EXECUTE format('DELETE FROM "public".%I WHERE app_name = $1 AND user_id = $2', v_table.name)
              USING p_app_name, p_user_id;
        ELSIF NOT v_table.is_cascaded THEN
            EXECUTE format('DELETE FROM "public".%I WHERE thread_id = ANY ($1)', v_table.name) USING v_threads;
        END IF;
    END LOOP;

    table_name := 'access_tickets';
    DELETE FROM "public".access_tickets t WHERE t.user_id = p_user_id AND t.app_names <@ ARRAY[p_app_name];
    GET DIAGNOSTICS rows = ROW_COUNT;
    IF rows > 0 THEN
        RETURN NEXT;
    END IF;
    table_name := 'api_keys';
    WITH gone AS (
        DELETE FROM "public".api_keys k
         WHERE k.user_id = p_user_id AND k.app_names <@ ARRAY[p_app_name] RETURNING k.id
    )
    SELECT count(*), array_agg('key:' || id) INTO rows, v_keys FROM gone;
    IF rows > 0 THEN
        RETURN NEXT;
    END IF;
    table_name := 'audit_log';
    UPDATE "public".audit_log a
       SET actor = CASE WHEN a.actor = ANY (v_names || v_keys || ('jwt:' || p_user_id)) THEN p_pseudonym ELSE a.actor END,
           target = (SELECT string_agg(CASE WHEN part.segment = ANY (v_names) THEN p_pseudonym ELSE part.segment END,
                                       '/' ORDER BY part.place)
                       FROM string_to_table(a.target, '/') WITH ORDINALITY AS part (segment, place))
     WHERE a.app_name = p_app_name
           AND (a.actor = ANY (v_names || v_keys || ('jwt:' || p_user_id)) OR string_to_array(a.target, '/') && v_names)
        -- Entries of callers that belong to no app: ids of threads are unique, other names need the app beside them.
        OR a.app_name = '*' AND (string_to_array(a.target, '/') && v_threads::text[]
                                 OR string_to_array(a.target, '/') && v_names
                                    AND p_app_name = ANY (string_to_array(a.target, '/')));
    GET DIAGNOSTICS rows = ROW_COUNT;
    IF rows > 0 THEN
        RETURN NEXT;
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('archive/erase_user.sql', 0, '0997c4561253a9bdc6ba097c100b6b91a44c03fc80f2b73badde6f7144119305', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- archive/import_rows.sql
-- Insert rows of an archive into one table. A line is {"table": …, "row": …}, and the row has the columns of the table. A row
-- of another thread or app than the given ones is refused; a null thread stands for rows of a state. Write numbers become
-- negative (by 2^62): they keep their order, and precede every number that was given here.
CREATE OR REPLACE FUNCTION "public".import_rows(p_table text, p_lines text[], p_thread_id uuid, p_app_name text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_columns text;
    v_values text;
    v_count bigint;
BEGIN
    IF p_table NOT IN ('user_states', 'app_states', 'state_writes') AND p_thread_id IS NULL
       OR p_thread_id IS NOT NULL AND p_table <> 'threads'
          AND NOT EXISTS (SELECT FROM "public".thread_tables() WHERE name = p_table)
    THEN
        RAISE undefined_table USING MESSAGE = format('an archive has no rows of %s', p_table);
    END IF;
    PERFORM FROM (SELECT (line::json -> 'row') AS content FROM unnest(p_lines) line) rows
      WHERE content ->> 'app_name' IS DISTINCT FROM p_app_name
         OR p_thread_id IS NOT NULL
            AND CASE WHEN p_table = 'threads' THEN content ->> 'id' ELSE content ->> 'thread_id' END
                IS DISTINCT FROM p_thread_id::text;
    IF FOUND THEN
        RAISE check_violation USING MESSAGE = format('a row of %s belongs to another thread or app', p_table);
    END IF;
    SELECT string_agg(quote_ident(a.attname), ', '),
           string_agg(CASE WHEN a.attname IN ('write_number', 'began_number')
                           THEN format('CASE WHEN r.%1$I > 0 THEN r.%1$I - 4611686018427387904 ELSE r.%1$I END', a.attname)
                           ELSE 'r.' || quote_ident(a.attname) END, ', ')
      INTO v_columns, v_values
      FROM pg_attribute a
     WHERE a.attrelid = format('"public".%I', p_table)::regclass AND a.attnum > 0 AND NOT a.attisdropped
       AND a.attgenerated = '' AND a.attname IN (SELECT json_object_keys(p_lines[1]::json -> 'row'));
    EXECUTE format('INSERT INTO "public".%1$I (%2$s) SELECT %3$s FROM unnest($1) line, '
                   'json_populate_record(NULL::"public".%1$I, line::json -> ''row'') r', p_table, v_columns, v_values)
      USING p_lines;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('archive/import_rows.sql', 0, '30beed0827ead32a17137d614384ef7eac76bbb30822402d8a70a34042a693f1', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- archive/prune_threads.sql
-- Delete up to p_limit threads that were not changed for the days that p_rules gives for their app; the rule of `*` holds
-- for apps without one. A thread with a run that is not ended, or with a schedule that is not paused,
-- stays. Returns the number of deleted threads.
CREATE OR REPLACE FUNCTION "public".prune_threads(p_rules text, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH rules AS MATERIALIZED (
        SELECT key AS app_name, make_interval(secs => value::double precision * 86400) AS age
          FROM jsonb_each_text(p_rules::jsonb)
    ), idle AS (
        SELECT t.id
          FROM "public".threads t
         WHERE t.updated_at < now() - coalesce((SELECT age FROM rules WHERE app_name = t.app_name),
                                               (SELECT age FROM rules WHERE app_name = '*'))
           AND NOT EXISTS (SELECT FROM "public".runs r
                            WHERE r.thread_id = t.id AND r.status NOT IN ('completed', 'failed', 'cancelled'))
           AND NOT EXISTS (SELECT FROM "public".schedules s WHERE s.thread_id = t.id AND s.paused_at IS NULL)
         ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM "public".threads t USING idle WHERE t.id = idle.id RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('archive/prune_threads.sql', 0, 'eb878d72d6742eb391249d48bf53aed623c2921bf76a769ad3d9bb563f79a087', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- archive/read_thread_rows.sql
-- Return the tables whose rows belong to one thread and move with it. Queues, caches, chunks of open streams and
-- schedules do not: both installations would fire a schedule.
CREATE OR REPLACE FUNCTION "public".thread_tables() RETURNS TABLE (name text) LANGUAGE sql STABLE AS $$
    SELECT c.relname::text
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'thread_id' AND a.atttypid = 'uuid'::regtype
     WHERE c.relnamespace = '"public"'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
       AND c.relname NOT IN ('message_chunks', 'message_counts', 'agent_episodes_due', 'state_writes', 'schedules',
                             'schedule_firings', 'webhook_deliveries')
     -- Rows of a run refer to it.
     ORDER BY c.relname <> 'runs', c.relname
$$;

-- Return the rows of one thread in one table of `thread_tables`, as JSON.
CREATE OR REPLACE FUNCTION "public".read_thread_rows(p_table text, p_thread_id uuid) RETURNS SETOF json
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM FROM "public".thread_tables() WHERE name = p_table;
    IF NOT FOUND THEN
        RAISE undefined_table USING MESSAGE = format('no rows of a thread are in %s', p_table);
    END IF;
    RETURN QUERY EXECUTE format('SELECT row_to_json(r) FROM "public".%I r WHERE r.thread_id = $1', p_table)
           USING p_thread_id;
END
$$;

-- Return the state of a user or of an app with its history, as JSON: the row of the state, then its writes.
CREATE OR REPLACE FUNCTION "public".read_scope_rows(p_app_name text, p_user_id text)
RETURNS TABLE (table_name text, content json) LANGUAGE sql STABLE AS $$
    SELECT 'user_states', row_to_json(u) FROM "public".user_states u
     WHERE u.app_name = p_app_name AND u.user_id = p_user_id
    UNION ALL
    SELECT 'app_states', row_to_json(a) FROM "public".app_states a
     WHERE a.app_name = p_app_name AND p_user_id IS NULL
    UNION ALL
    SELECT 'state_writes', row_to_json(w) FROM "public".state_writes w
     WHERE w.app_name = p_app_name
       AND CASE WHEN p_user_id IS NULL THEN w.scope = 'app' ELSE w.scope = 'user' AND w.user_id = p_user_id END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('archive/read_thread_rows.sql', 0, '03df2bdfa4d6b56af01c18882c023d48d9786fa4e85bd9e1c4f137571681b953', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- archive/read_user_rows.sql
-- Return the rows of one user in one table of `user_tables`, as JSON.
CREATE OR REPLACE FUNCTION "public".read_user_rows(p_table text, p_app_name text, p_user_id text) RETURNS SETOF json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_condition text;
BEGIN
    SELECT condition INTO STRICT v_condition FROM "public".user_tables() WHERE name = p_table;
    RETURN QUERY EXECUTE format('SELECT row_to_json(r) FROM "public".%I r WHERE %s', p_table, v_condition)
           USING p_app_name, p_user_id;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('archive/read_user_rows.sql', 0, 'cd432f5c466a774fe8013caa828156bdb42e103282398583ab8cafff626c6ce8', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- archive/user_tables.sql
-- Return the tables that hold rows of one user, found in the catalogue, so that a new table is covered:
--   user_id    tables with app_name and user_id
--   thread_id  tables with app_name and the id of a thread; for LangGraph's checkpoints it is a text
--   parent     tables whose rows are deleted with rows of a table above, by a foreign key of one column
-- `condition` selects the rows r of the user $2 of the app $1. `is_cascaded` says that deleting a thread, or the parent,
-- deletes the rows.
CREATE OR REPLACE FUNCTION "public".user_tables()
RETURNS TABLE (name text, key text, is_cascaded boolean, condition text) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE direct AS (
        SELECT c.oid, c.relname,
               bool_or(a.attname = 'user_id') AS has_user,
               bool_or(a.attname = 'thread_id' AND a.atttypid = 'text'::regtype) AS has_text_id,
               EXISTS (SELECT FROM pg_constraint k
                        WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confdeltype = 'c'
                          AND (SELECT attnum FROM pg_attribute WHERE attrelid = c.oid AND attname = 'thread_id')
                              = ANY (k.conkey)) AS is_cascaded
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace = '"public"'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
         GROUP BY c.oid, c.relname
        HAVING bool_or(a.attname = 'app_name') AND bool_or(a.attname IN ('user_id', 'thread_id'))
    ), found AS (
        SELECT d.oid, d.relname, CASE WHEN d.has_user THEN 'user_id' ELSE 'thread_id' END AS key,
               d.is_cascaded OR d.has_text_id AS is_cascaded,
               (CASE WHEN d.has_user THEN '@.app_name = $1 AND @.user_id = $2'
                    ELSE format('@.thread_id IN (SELECT t.id%s FROM "public".threads t '
                                'WHERE t.app_name = $1 AND t.user_id = $2)',
                                CASE WHEN d.has_text_id THEN '::text' ELSE '' END)
                END) COLLATE "C" AS condition
          FROM direct d
         UNION
        SELECT c.oid, c.relname, 'parent', true,
               format('@.%I IN (SELECT p%s.%I FROM "public".%I p%s WHERE %s)', child.attname, f.oid, parent.attname, f.relname,
                      f.oid, replace(f.condition, '@', 'p' || f.oid)) COLLATE "C"
          FROM found f
          JOIN pg_constraint k ON k.confrelid = f.oid AND k.contype = 'f' AND k.confdeltype = 'c' AND cardinality(k.conkey) = 1
          JOIN pg_class c ON c.oid = k.conrelid AND c.relnamespace = '"public"'::regnamespace AND NOT c.relispartition
          JOIN pg_attribute child ON child.attrelid = c.oid AND child.attnum = k.conkey[1]
          JOIN pg_attribute parent ON parent.attrelid = f.oid AND parent.attnum = k.confkey[1]
         WHERE c.oid NOT IN (SELECT oid FROM direct)
    )
    SELECT DISTINCT ON (relname <> 'threads', relname)
           relname::text, key, is_cascaded, replace(condition, '@', 'r')
      FROM found ORDER BY relname <> 'threads', relname
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('archive/user_tables.sql', 0, '3e7d334b708a790be5db6cd8d6f1b64c9408941f04065e7f11f16d4aafd3d818', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- artifacts/release_artifact_blobs.sql
-- Delete the bytes of deleted artifacts that no other artifact refers to: those in the database now, those of a store by
-- the sweep. Forks of a session share blobs. The row locks order deletions of two artifacts of one blob: the later one sees
-- that the earlier artifact is gone.
CREATE OR REPLACE FUNCTION "public".release_artifact_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM "public".artifact_blobs b WHERE b.id IN (SELECT blob_id FROM gone) ORDER BY b.id FOR UPDATE;
    DELETE FROM "public".artifact_blobs b
     WHERE b.id IN (SELECT blob_id FROM gone) AND b.store IS NULL
       AND NOT EXISTS (SELECT FROM "public".artifacts a WHERE a.blob_id = b.id);
    UPDATE "public".artifact_blobs b SET delete_after = clock_timestamp()
     WHERE b.id IN (SELECT blob_id FROM gone) AND b.store IS NOT NULL
       AND NOT EXISTS (SELECT FROM "public".artifacts a WHERE a.blob_id = b.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER release_artifact_blobs AFTER DELETE ON "public".artifacts
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION "public".release_artifact_blobs();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('artifacts/release_artifact_blobs.sql', 0, 'a43416b5bc56b5ac7120295901e522e3421f76f8969c947752cc59b1139a4f5f', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- artifacts/save_artifact.sql
-- Store the next version of an artifact. Its bytes are `p_data`, or in a store under `p_blob_id`, whose row
-- `begin_artifact_upload` wrote. A call that is sent again returns the version that it stored before.
-- status: saved; deleted (the session); expired (the upload took too long, and its bytes may be deleted).
CREATE OR REPLACE FUNCTION "public".save_artifact(
    p_id uuid, p_app_name text, p_user_id text, p_session_id text, p_filename text, p_mime_type text, p_size bigint,
    p_sha256 bytea, p_metadata json, p_attributes json, p_blob_id uuid, p_data bytea,
    OUT status text, OUT version integer, OUT created_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT 'saved', a.version, a.created_at INTO status, save_artifact.version, save_artifact.created_at
      FROM "public".artifacts a WHERE a.id = p_id;
    IF FOUND THEN
        RETURN;
    END IF;
    IF p_session_id IS NOT NULL THEN
        -- The lock of `forget_threads`: a deletion of the session ends before this, or deletes this artifact too.
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
        IF "public".is_deleted_session(p_app_name, p_user_id, p_session_id) THEN
            status := 'deleted';
            RETURN;
        END IF;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(
        'artifact ' || p_app_name || chr(1) || p_user_id || chr(1) || coalesce(p_session_id, '') || chr(1) || p_filename, 0));
    IF p_data IS NOT NULL THEN
        INSERT INTO "public".artifact_blobs (id, app_name, data) VALUES (p_blob_id, p_app_name, p_data);
    ELSE
        UPDATE "public".artifact_blobs SET delete_after = NULL
         WHERE id = p_blob_id AND delete_after IS NOT NULL AND NOT is_deleting;
        IF NOT FOUND THEN
            status := 'expired';
            RETURN;
        END IF;
    END IF;
    INSERT INTO "public".artifacts (id, app_name, user_id, session_id, filename, version, blob_id, mime_type, size, sha256,
                                    metadata, attributes)
    VALUES (p_id, p_app_name, p_user_id, p_session_id, p_filename,
            (SELECT coalesce(max(a.version) + 1, 0) FROM "public".artifacts a
              WHERE a.app_name = p_app_name AND a.user_id = p_user_id
                AND md5(coalesce(a.session_id, '')) = md5(coalesce(p_session_id, ''))
                AND a.session_id IS NOT DISTINCT FROM p_session_id
                AND md5(a.filename) = md5(p_filename) AND a.filename = p_filename),
            p_blob_id, p_mime_type, p_size, p_sha256, p_metadata, p_attributes)
    RETURNING 'saved', artifacts.version, artifacts.created_at
         INTO status, save_artifact.version, save_artifact.created_at;
END
$$;

-- Announces bytes that are about to be written to a store. They are deleted after `p_keep` unless `save_artifact` uses them.
CREATE OR REPLACE FUNCTION "public".begin_artifact_upload(p_id uuid, p_app_name text, p_store text, p_keep interval)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO "public".artifact_blobs (id, app_name, store, delete_after)
    VALUES (p_id, p_app_name, p_store, clock_timestamp() + p_keep)
$$;

-- Marks the bytes of an upload that failed for deletion.
CREATE OR REPLACE FUNCTION "public".abandon_artifact_upload(p_id uuid) RETURNS void LANGUAGE sql AS $$
    UPDATE "public".artifact_blobs SET delete_after = clock_timestamp() WHERE id = p_id AND delete_after IS NOT NULL
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('artifacts/save_artifact.sql', 0, '2346bf3a26ac911649e92e986f9e4a1065f7e32bb43ce6ec2f26d37bcc2b3780', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- branches/branch_path.sql
-- Return the events of a branch as ordered ranges of sequence numbers: its own segments, and those of its ancestors up to
-- the fork. Null means the active branch. SQLSTATE CZ404: no such branch.
CREATE OR REPLACE FUNCTION "public".find_branch(p_thread_id uuid, p_name text) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_number integer;
BEGIN
    IF p_name IS NULL THEN
        RETURN coalesce((SELECT branch FROM "public".branch_segments
                          WHERE thread_id = p_thread_id ORDER BY from_sequence DESC LIMIT 1), 0);
    ELSIF p_name = 'main' THEN
        RETURN 0;
    END IF;
    SELECT number INTO v_number FROM "public".branches
     WHERE thread_id = p_thread_id AND name = p_name AND deleted_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no branch %L in this thread', p_name);
    END IF;
    RETURN v_number;
END
$$;

CREATE OR REPLACE FUNCTION "public".branch_path(p_thread_id uuid, p_name text)
RETURNS TABLE (first_sequence bigint, last_sequence bigint) LANGUAGE plpgsql STABLE ROWS 4 AS $$
DECLARE
    v_end CONSTANT bigint := 9223372036854775806; -- one less than the largest number: ranges store their end exclusively
BEGIN
    -- The usual case: the thread has no branches, or never left `main`, and nothing was removed.
    IF NOT EXISTS (SELECT FROM "public".branch_segments s WHERE s.thread_id = p_thread_id)
       AND coalesce(p_name, 'main') = 'main'
       AND NOT EXISTS (SELECT FROM "public".hidden_events h WHERE h.thread_id = p_thread_id) THEN
        RETURN QUERY SELECT 1::bigint, v_end;
        RETURN;
    END IF;
    -- `as_of`: of an ancestor, what it removed before the fork counts, and nothing that it removed later.
    RETURN QUERY
    WITH RECURSIVE line (depth, number, up_to, as_of) AS (
        SELECT 0, "public".find_branch(p_thread_id, p_name), v_end, v_end
        UNION ALL
        SELECT line.depth + 1, b.parent, least(line.up_to, b.forked_at), least(line.as_of, coalesce(b.write_number, 0))
          FROM line JOIN "public".branches b ON b.thread_id = p_thread_id AND b.number = line.number
    ), segment AS (
        SELECT s.branch, s.from_sequence,
               coalesce(lead(s.from_sequence) OVER (ORDER BY s.from_sequence) - 1, v_end) AS to_sequence
          FROM (SELECT 0 AS branch, 0::bigint AS from_sequence
                UNION ALL
                SELECT g.branch, g.from_sequence FROM "public".branch_segments g WHERE g.thread_id = p_thread_id) s
    ), own AS (
        SELECT line.depth, segment.from_sequence AS first, least(segment.to_sequence, line.up_to) AS last
          FROM line JOIN segment ON segment.branch = line.number
         WHERE segment.from_sequence <= line.up_to AND segment.to_sequence > 0
    ), hidden AS (
        SELECT line.depth, int8range(h.first_sequence, h.last_sequence, '[]') AS range
          FROM line
          JOIN "public".hidden_events h
            ON h.thread_id = p_thread_id AND h.branch = line.number AND h.write_number <= line.as_of
    )
    SELECT lower(part.range), upper(part.range) - 1
      FROM own
     -- A branch removes its own events and those of its ancestors.
     CROSS JOIN LATERAL unnest(
            int8multirange(int8range(own.first, own.last, '[]'))
            - coalesce((SELECT range_agg(hidden.range) FROM hidden WHERE hidden.depth <= own.depth), '{}')
           ) AS part (range)
     ORDER BY 1;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('branches/branch_path.sql', 0, '8ee4859c16b75daa118c4218de07b7345593e1d94a29ff178577f7474ed4d768', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- branches/create_branch.sql
-- Create a branch that forks at an event (null: the newest), and append an event about it. Its parent is the branch of
-- that event. Readers follow the ancestors, so their number is limited.
-- SQLSTATE CZ404: no such thread or event; CZ409: the name is taken, or the parent is nested too deep.
CREATE OR REPLACE FUNCTION "public".create_branch(p_thread_id uuid, p_name text, p_at_sequence bigint, p_event_id text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_max_depth CONSTANT integer := 100;
    v_thread record;
    v_at bigint;
    v_parent integer;
BEGIN
    SELECT app_name, last_sequence INTO v_thread FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    v_at := coalesce(p_at_sequence, v_thread.last_sequence);
    IF v_at > v_thread.last_sequence THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE =
            format('event %s has not happened yet; the thread is at %s', v_at, v_thread.last_sequence);
    END IF;
    IF p_name = 'main' OR EXISTS (SELECT FROM "public".branches
                                   WHERE thread_id = p_thread_id AND name = p_name AND deleted_at IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format('branch %L exists already; choose another name', p_name);
    END IF;
    v_parent := coalesce((SELECT branch FROM "public".branch_segments
                           WHERE thread_id = p_thread_id AND from_sequence <= v_at
                           ORDER BY from_sequence DESC LIMIT 1), 0);
    IF EXISTS (SELECT FROM "public".branches
                WHERE thread_id = p_thread_id AND number = v_parent AND deleted_at IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('event %s was on a branch that is deleted', v_at);
    END IF;
    IF v_max_depth <= (
        WITH RECURSIVE line (number) AS (
            SELECT v_parent
            UNION ALL
            SELECT b.parent FROM line JOIN "public".branches b ON b.thread_id = p_thread_id AND b.number = line.number
        )
        SELECT count(*) - 1 FROM line
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format(
            'event %s is on a branch that is nested %s deep, which is the limit; fork at an earlier event, or fork the '
            'session and continue there', v_at, v_max_depth);
    END IF;
    INSERT INTO "public".branches (thread_id, number, app_name, name, parent, forked_at)
    SELECT p_thread_id, coalesce(max(number), 0) + 1, v_thread.app_name, p_name, v_parent, v_at
      FROM "public".branches WHERE thread_id = p_thread_id;
    PERFORM "public".append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'branch_created',
        json_build_object('name', p_name, 'at_sequence', v_at), '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, false,
        true, 0, 0);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('branches/create_branch.sql', 0, '2cd8411c08ea9a848ae4cb68fee47346d6b85a97e00823854f2a4dfc38fef5c1', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- branches/delete_branch.sql
-- Delete a branch and append an event about it. Its events stay in the log and belong to no visible branch.
-- SQLSTATE CZ404: no such thread or branch; CZ409: it is `main`, the active one, or others fork from it.
CREATE OR REPLACE FUNCTION "public".delete_branch(p_thread_id uuid, p_name text, p_event_id text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_number integer;
    v_child text;
BEGIN
    PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    v_number := "public".find_branch(p_thread_id, p_name);
    IF v_number = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = 'the branch main cannot be deleted';
    END IF;
    IF v_number = "public".find_branch(p_thread_id, NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE =
            format('branch %L is the active one; switch to another, then delete it', p_name);
    END IF;
    SELECT name INTO v_child FROM "public".branches
     WHERE thread_id = p_thread_id AND parent = v_number AND deleted_at IS NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format('branch %L forks from it; delete that one first', v_child);
    END IF;
    UPDATE "public".branches SET deleted_at = clock_timestamp() WHERE thread_id = p_thread_id AND number = v_number;
    PERFORM "public".append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'branch_deleted', json_build_object('name', p_name), '{}',
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, true, 0, 0);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('branches/delete_branch.sql', 0, '8197d4dc4b79cfc4634ad99d15bdd61b99133d2b54eb96a337d4a36ce46357b6', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- branches/switch_branch.sql
-- Make a branch the active one. The appended event is the first of a new segment, and its delta restores the session's
-- state at the tip of the branch. So the state after any event is that of its branch, and replays ignore branches.
-- Status:
--   switched  `sequence_num` is that of the event
--   same      it is already the active one; nothing was written
--   conflict  the state has changed; compute the delta again
-- SQLSTATE CZ404: no such thread or branch; CZ409: a run is active, whose events would be appended to the wrong branch.
CREATE OR REPLACE FUNCTION "public".switch_branch(
    p_thread_id uuid, p_name text, p_event_id text, p_actions json, p_delta jsonb, p_expected_version bigint,
    p_max_state_bytes integer, OUT status text, OUT sequence_num bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_app_name text;
    v_number integer;
    v_active integer;
    v_run text;
BEGIN
    SELECT app_name INTO v_app_name FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    v_number := "public".find_branch(p_thread_id, p_name);
    v_active := "public".find_branch(p_thread_id, NULL);
    IF v_number = v_active THEN
        status := 'same';
        RETURN;
    END IF;
    SELECT id INTO v_run FROM "public".runs
     WHERE thread_id = p_thread_id AND status IN ('running', 'waiting') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE =
            format('run %s is active in this thread; wait for its end or cancel it, then switch', left(v_run, 200));
    END IF;
    SELECT answer.status, answer.sequence_num INTO status, sequence_num
      FROM "public".append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'branch_switched',
        json_build_object('name', p_name, 'from',
            coalesce((SELECT name FROM "public".branches WHERE thread_id = p_thread_id AND number = v_active), 'main')),
        p_actions, p_delta, NULL, NULL, p_expected_version, NULL, NULL, NULL, false, true, 0, p_max_state_bytes)
        AS answer;
    IF status = 'stored' THEN
        INSERT INTO "public".branch_segments (thread_id, from_sequence, app_name, branch)
        VALUES (p_thread_id, switch_branch.sequence_num, v_app_name, v_number);
        status := 'switched';
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('branches/switch_branch.sql', 0, 'd69bdf3f3a45430b20db6a45b54a9acd01614b36b975101cf7e6e81bdc4cc59f', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- conversation_store/delete_conversation_entries.sql
-- Delete the entries that only deleted conversations used: the trigger function of deletions of conversation_records.
CREATE OR REPLACE FUNCTION "public".delete_conversation_entries() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_tree record;
BEGIN
    FOR v_tree IN SELECT DISTINCT d.app_name, root.id FROM deleted d, unnest(d.roots) root (id) ORDER BY 1, 2 LOOP
        -- A writer that points at an entry of this tree holds a share of the lock until its record is visible here.
        PERFORM FROM "public".conversation_entries e WHERE e.app_name = v_tree.app_name AND e.id = v_tree.id FOR UPDATE;
        WITH RECURSIVE kept AS (
            SELECT e.id, e.parent_id
              FROM "public".conversation_records r
              JOIN "public".conversation_entries e
                ON e.app_name = r.app_name AND e.root_id = v_tree.id AND e.id = ANY (r.branches || r.head_id)
             WHERE r.app_name = v_tree.app_name AND r.roots @> ARRAY[v_tree.id]
            UNION
            SELECT e.id, e.parent_id
              FROM kept k JOIN "public".conversation_entries e ON e.app_name = v_tree.app_name AND e.id = k.parent_id
        )
        DELETE FROM "public".conversation_entries e
         WHERE e.app_name = v_tree.app_name AND e.root_id = v_tree.id AND e.id NOT IN (SELECT id FROM kept);
    END LOOP;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER delete_conversation_entries AFTER DELETE ON "public".conversation_records
    REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION "public".delete_conversation_entries();

-- Delete a conversation whose revision is the expected one; return whether there was one. The trigger deletes its entries.
CREATE OR REPLACE FUNCTION "public".delete_conversation(p_app_name text, p_conversation_id text, p_revision text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM "public".conversation_records
     WHERE app_name = p_app_name AND md5(conversation_id) = md5(p_conversation_id) AND conversation_id = p_conversation_id
       AND revision = p_revision;
    RETURN FOUND;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('conversation_store/delete_conversation_entries.sql', 0, 'dcc216711e2e726aa5496ef00a3ff805410a43c4e33c251fc73ff6a992651297', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- conversation_store/read_conversation_history.sql
-- Return the last entries of a history, newest first: `p_head_id` and the entries before it, at most p_limit (null: all).
CREATE OR REPLACE FUNCTION "public".read_conversation_history(p_app_name text, p_head_id text, p_limit integer)
RETURNS TABLE (id text, parent_id text, kind text, message text, written_by text) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE history AS (
        SELECT 1 AS place, e.id, e.parent_id FROM "public".conversation_entries e
         WHERE e.app_name = p_app_name AND e.id = p_head_id
        UNION ALL
        SELECT h.place + 1, e.id, e.parent_id
          FROM history h JOIN "public".conversation_entries e ON e.app_name = p_app_name AND e.id = h.parent_id
         WHERE p_limit IS NULL OR h.place < p_limit
    )
    SELECT e.id, e.parent_id, e.kind, e.message::text, e.written_by
      FROM history h JOIN "public".conversation_entries e ON e.app_name = p_app_name AND e.id = h.id
     ORDER BY h.place
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('conversation_store/read_conversation_history.sql', 0, 'a5e9abd5239095d9d988ae53fb15468e8daa8e04df95c5261d2ecbd1ef453023', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- conversation_store/write_conversation.sql
-- Store a record and its new entries, each behind its parent, if the stored revision is the expected one (null: there is
-- no record). Returns false, and changes nothing, if it is not, or if the head or a parent was deleted. A repeated call
-- finds its own revision stored.
CREATE OR REPLACE FUNCTION "public".write_conversation(
    p_app_name text, p_conversation_id text, p_user_id text, p_head_id text, p_branches text[], p_document text,
    p_revision text, p_updated_at timestamptz, p_written_by text, p_expected_revision text, p_is_repeated boolean,
    p_ids text[], p_parent_ids text[], p_kinds text[], p_messages text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_revision text;
    v_roots text[];
    v_known integer;
BEGIN
    SELECT r.revision INTO v_revision FROM "public".conversation_records r
     WHERE r.app_name = p_app_name AND md5(r.conversation_id) = md5(p_conversation_id)
       AND r.conversation_id = p_conversation_id FOR UPDATE;
    IF p_is_repeated AND v_revision = p_revision THEN
        RETURN true;
    END IF;
    IF v_revision IS DISTINCT FROM p_expected_revision THEN
        RETURN false;
    END IF;
    -- The stored entries that this write points at, and their roots. The deletion of a conversation locks the roots before
    -- it deletes entries; so the entries that are found after the lock stay until the commit.
    PERFORM FROM "public".conversation_entries root
      WHERE root.app_name = p_app_name
        AND root.id IN (SELECT e.root_id FROM "public".conversation_entries e
                         WHERE e.app_name = p_app_name AND e.id = ANY (p_parent_ids || p_branches || p_head_id))
      ORDER BY root.id FOR KEY SHARE;
    SELECT count(*) INTO v_known FROM "public".conversation_entries e
     WHERE e.app_name = p_app_name AND e.id IN (SELECT unnest(p_parent_ids || p_head_id) EXCEPT SELECT unnest(p_ids));
    IF v_known < (SELECT count(*) FROM (SELECT unnest(p_parent_ids || p_head_id) EXCEPT SELECT unnest(p_ids)) needed (id)
                   WHERE needed.id IS NOT NULL) THEN
        RETURN false;
    END IF;
    FOR v_place IN 1 .. cardinality(p_ids) LOOP
        INSERT INTO "public".conversation_entries (app_name, id, parent_id, root_id, kind, message, written_by)
        VALUES (p_app_name, p_ids[v_place], p_parent_ids[v_place],
                coalesce((SELECT e.root_id FROM "public".conversation_entries e
                           WHERE e.app_name = p_app_name AND e.id = p_parent_ids[v_place]), p_ids[v_place]),
                p_kinds[v_place], p_messages[v_place]::json, p_written_by);
    END LOOP;
    SELECT coalesce(array_agg(DISTINCT e.root_id), '{}') INTO v_roots FROM "public".conversation_entries e
     WHERE e.app_name = p_app_name AND e.id = ANY (p_branches || p_head_id);
    INSERT INTO "public".conversation_records AS r (
        app_name, conversation_id, user_id, head_id, branches, roots, document, revision, updated_at, written_by)
    VALUES (p_app_name, p_conversation_id, p_user_id, p_head_id, p_branches, v_roots, p_document::json, p_revision,
            p_updated_at, p_written_by)
    ON CONFLICT (app_name, md5(conversation_id)) DO UPDATE
       SET user_id = excluded.user_id, head_id = excluded.head_id, branches = excluded.branches, roots = excluded.roots,
           document = excluded.document, revision = excluded.revision, updated_at = excluded.updated_at,
           written_by = excluded.written_by
     WHERE r.revision = p_expected_revision;
    IF NOT FOUND THEN
        -- Another writer created the record. The entries that were inserted above belong to no record.
        DELETE FROM "public".conversation_entries e WHERE e.app_name = p_app_name AND e.id = ANY (p_ids);
        RETURN false;
    END IF;
    RETURN true;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('conversation_store/write_conversation.sql', 0, '43f8a5db3aa66c6a5f1c68c2e45a8318ee83d32e9262362bd636d47ccc50c86d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- conversations/append_to_session.sql
-- Appends events to one session. Engines before `append_to_sessions` call this during an upgrade; it can be removed one version
-- later. The rules and statuses are those of `append_events`.
CREATE OR REPLACE FUNCTION "public".append_to_session(
    p_app_name text, p_user_id text, p_session_id text, p_thread_id uuid,
    p_event_ids text[], p_authors text[], p_event_types text[], p_contents text[], p_roles text[], p_texts text[],
    p_message_ids text[], p_run_id text, p_may_be_resent boolean, p_fence_run_id text, p_fence_attempt integer,
    p_notify boolean DEFAULT true, p_wait boolean DEFAULT true,
    OUT status text, OUT thread_id uuid, OUT sequence_nums bigint[], OUT created_ats timestamptz[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_count CONSTANT integer := cardinality(p_event_ids);
BEGIN
    -- Again, if the session is deleted between the two statements.
    FOR attempt IN 1 .. 3 LOOP
        thread_id := "public".find_or_create_session(p_app_name, p_user_id, p_session_id, p_thread_id);
        SELECT min(answer.status), array_agg(answer.sequence_num ORDER BY answer.place),
               array_agg(answer.created_at ORDER BY answer.place)
          INTO status, sequence_nums, created_ats
          FROM "public".append_events(
            ARRAY[append_to_session.thread_id], array_fill(1, ARRAY[v_count]), p_event_ids,
            array_fill(p_run_id, ARRAY[v_count]), array_fill(''::text, ARRAY[v_count]), p_authors, p_event_types,
            p_contents, array_fill('{}'::text, ARRAY[v_count]), NULL, NULL, NULL, NULL, p_roles, p_texts,
            p_message_ids, array_fill(p_may_be_resent, ARRAY[v_count]), p_wait, 0, 0,
            p_fence_run_ids => array_fill(p_fence_run_id, ARRAY[v_count]),
            p_fence_attempts => array_fill(p_fence_attempt, ARRAY[v_count]), p_notify => p_notify)
          WITH ORDINALITY AS answer (status, sequence_num, version, created_at, place);
        EXIT WHEN status <> 'missing';
    END LOOP;
END
$$;

-- Returns the thread of a session; creates it, under p_thread_id, if there is none.
CREATE OR REPLACE FUNCTION "public".find_or_create_session(
    p_app_name text, p_user_id text, p_session_id text, p_thread_id uuid
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_found uuid;
BEGIN
    SELECT id INTO v_found FROM "public".threads
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(session_id) = md5(p_session_id)
       AND session_id = p_session_id;
    IF NOT FOUND THEN
        SELECT created.thread_id INTO v_found
          FROM "public".create_sessions(
            ARRAY[p_thread_id], ARRAY[p_app_name], ARRAY[p_user_id], ARRAY[p_session_id], ARRAY[NULL]::text[],
            ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY[NULL]::text[], ARRAY[NULL]::text[], 2147483647) AS created;
    END IF;
    RETURN v_found;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('conversations/append_to_session.sql', 0, '5efebb7c73b855f282d168fac6d7fbcdd8abb768d258715f720a9fc650dc7646', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- conversations/append_to_sessions.sql
-- Appends events to several sessions in one transaction, in the order given; creates those that do not exist, under p_new_ids.
-- p_counts are the numbers of events of each session. The rules and statuses are those of `append_events`; `fenced`, `missing` and
-- `busy` concern all events of a session. The caller notifies after the commit.
CREATE OR REPLACE FUNCTION "public".append_to_sessions(
    p_app_names text[], p_user_ids text[], p_session_ids text[], p_new_ids uuid[], p_counts integer[], p_run_ids text[],
    p_may_be_resent boolean[], p_fence_run_ids text[], p_fence_attempts integer[], p_event_ids text[], p_authors text[],
    p_event_types text[], p_contents text[], p_roles text[], p_texts text[], p_message_ids text[], p_wait boolean
) RETURNS TABLE (status text, thread_id uuid, sequence_nums bigint[], created_ats timestamptz[])
LANGUAGE plpgsql
-- One plan, made once, maybe while the tables are empty: it must be one that stays good when they have grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_events CONSTANT integer := cardinality(p_event_ids);
    v_ids uuid[];
    v_threads uuid[];
    v_owners integer[];
    v_places integer[];
    v_runs text[];
    v_resent boolean[];
    v_fences text[];
    v_attempts integer[];
BEGIN
    SELECT array_agg(found.id ORDER BY item.place) INTO v_ids
      FROM unnest(p_app_names, p_user_ids, p_session_ids) WITH ORDINALITY AS item (app_name, user_id, session_id, place)
      LEFT JOIN LATERAL (
            SELECT t.id FROM "public".threads t
             WHERE t.app_name = item.app_name AND t.user_id = item.user_id AND md5(t.session_id) = md5(item.session_id)
               AND t.session_id = item.session_id) AS found ON true;
    IF array_position(v_ids, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(item.id, created.thread_id) ORDER BY item.place) INTO v_ids
          FROM unnest(v_ids) WITH ORDINALITY AS item (id, place)
          LEFT JOIN (
                SELECT answer.thread_id, missing.places[answer.number] AS place
                  FROM (SELECT array_agg(m.new_id ORDER BY m.place) AS new_ids, array_agg(m.app_name ORDER BY m.place) AS apps,
                               array_agg(m.user_id ORDER BY m.place) AS users,
                               array_agg(m.session_id ORDER BY m.place) AS sessions,
                               array_agg(m.place ORDER BY m.place) AS places
                          FROM unnest(p_new_ids, p_app_names, p_user_ids, p_session_ids, v_ids)
                               WITH ORDINALITY AS m (new_id, app_name, user_id, session_id, id, place)
                         WHERE m.id IS NULL) AS missing
                 CROSS JOIN LATERAL "public".create_sessions(
                       missing.new_ids, missing.apps, missing.users, missing.sessions, NULL, NULL, NULL, NULL, NULL,
                       2147483647) WITH ORDINALITY
                       AS answer (status, thread_id, created_at, user_state, app_state, user_version, app_version, number)
               ) AS created ON created.place = item.place;
    END IF;
    -- A batch may contain a session twice.
    v_threads := ARRAY(SELECT DISTINCT id FROM unnest(v_ids) AS item (id));
    SELECT array_agg(item.place), array_agg(array_position(v_threads, v_ids[item.place])), array_agg(p_run_ids[item.place]),
           array_agg(p_may_be_resent[item.place]), array_agg(p_fence_run_ids[item.place]),
           array_agg(p_fence_attempts[item.place])
      INTO v_owners, v_places, v_runs, v_resent, v_fences, v_attempts
      FROM (SELECT item.place::integer
              FROM unnest(p_counts) WITH ORDINALITY AS item (count, place) CROSS JOIN generate_series(1, item.count)
             ORDER BY item.place) AS item;
    RETURN QUERY
    SELECT min(answer.status), v_ids[item.place], array_agg(answer.sequence_num ORDER BY answer.number),
           array_agg(answer.created_at ORDER BY answer.number)
      FROM "public".append_events(
            v_threads, v_places, p_event_ids, v_runs, array_fill(''::text, ARRAY[v_events]), p_authors, p_event_types,
            p_contents, array_fill('{}'::text, ARRAY[v_events]), NULL, NULL, NULL, NULL, p_roles, p_texts,
            p_message_ids, v_resent, p_wait, 0, 0, p_fence_run_ids => v_fences, p_fence_attempts => v_attempts,
            p_notify => false)
           WITH ORDINALITY AS answer (status, sequence_num, version, created_at, number)
     CROSS JOIN LATERAL (SELECT v_owners[answer.number] AS place) AS item
     GROUP BY item.place
     ORDER BY item.place;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('conversations/append_to_sessions.sql', 0, '5d37e96a418da3f9e24aebb5fa18c27adc01f5f1a76b50de5554facae2d61625', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- conversations/remove_events.sql
-- Removes a range of events from the active branch of a thread, and appends an event about it. The log keeps the events.
-- The caller holds the thread's row lock. Returns the status of that append: `stored` or `fenced`.
CREATE OR REPLACE FUNCTION "public".remove_events(
    p_thread_id uuid, p_branches integer[], p_first bigint, p_last bigint, p_event_id text, p_fence_run_id text,
    p_fence_attempt integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_status text;
BEGIN
    SELECT answer.status INTO v_status
      FROM "public".append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'messages_removed',
        json_build_object('first_sequence', p_first, 'last_sequence', p_last), '{}',
        p_fence_run_id => p_fence_run_id, p_fence_attempt => p_fence_attempt) AS answer;
    IF v_status = 'stored' THEN
        INSERT INTO "public".hidden_events (thread_id, branch, app_name, first_sequence, last_sequence)
        SELECT p_thread_id, branch, t.app_name, p_first, p_last
          FROM "public".threads t, unnest(p_branches) AS branch WHERE t.id = p_thread_id;
    END IF;
    RETURN v_status;
END
$$;

-- Removes the newest event of the given kinds from the active branch of a session, and returns it. A thought counts only with
-- the mark of a framework's item. Status: null if there is no such event. Sent again after a lost answer, with the same id of
-- the event about it, it answers as before.
CREATE OR REPLACE FUNCTION "public".pop_event(
    p_app_name text, p_user_id text, p_session_id text, p_kinds text[], p_mark text, p_event_id text,
    p_fence_run_id text, p_fence_attempt integer,
    OUT status text, OUT thread_id uuid, OUT event "public".events
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT id INTO thread_id FROM "public".threads
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(session_id) = md5(p_session_id)
       AND session_id = p_session_id
       FOR NO KEY UPDATE;
    SELECT e.* INTO event
      FROM "public".events r
      JOIN "public".events e ON e.thread_id = r.thread_id AND e.sequence_num = (r.content ->> 'first_sequence')::bigint
     WHERE r.thread_id = pop_event.thread_id AND md5(r.id) = md5(p_event_id) AND r.id = p_event_id;
    IF FOUND THEN
        status := 'stored';
        RETURN;
    END IF;
    SELECT newest.* INTO event
      FROM "public".branch_path(pop_event.thread_id, NULL) AS path
     CROSS JOIN LATERAL (
            SELECT * FROM "public".events e
             WHERE e.thread_id = pop_event.thread_id
               AND e.sequence_num BETWEEN path.first_sequence AND path.last_sequence
               AND e.event_type = ANY (p_kinds)
               AND (e.event_type <> 'thought' OR starts_with(left(e.content::text, length(p_mark)), p_mark))
             ORDER BY e.sequence_num DESC
             LIMIT 1) AS newest
     ORDER BY newest.sequence_num DESC
     LIMIT 1;
    IF (event).sequence_num IS NOT NULL THEN
        status := "public".remove_events(
            pop_event.thread_id, ARRAY["public".find_branch(pop_event.thread_id, NULL)], (event).sequence_num,
            (event).sequence_num, p_event_id, p_fence_run_id, p_fence_attempt);
    END IF;
END
$$;

-- Removes all events of a session from all of its branches. Status: null if there is no such session.
CREATE OR REPLACE FUNCTION "public".clear_session(
    p_app_name text, p_user_id text, p_session_id text, p_event_id text, p_fence_run_id text, p_fence_attempt integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_thread record;
BEGIN
    SELECT id, last_sequence INTO v_thread FROM "public".threads
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(session_id) = md5(p_session_id)
       AND session_id = p_session_id
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF v_thread.last_sequence = 0 OR EXISTS (
        SELECT FROM "public".events WHERE thread_id = v_thread.id AND md5(id) = md5(p_event_id) AND id = p_event_id
    ) THEN
        RETURN 'stored';
    END IF;
    RETURN "public".remove_events(
        v_thread.id,
        ARRAY(SELECT 0 UNION ALL SELECT number FROM "public".branches
               WHERE thread_id = v_thread.id AND deleted_at IS NULL),
        1, v_thread.last_sequence, p_event_id, p_fence_run_id, p_fence_attempt);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('conversations/remove_events.sql', 0, '59d46493cb56a0fb0971be590cecc5e7e89e7faf0b44eccb13bbca41356afe2e', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/append_event.sql
-- Appends one event to one thread: checks the expected versions and the fence, takes the next sequence number, merges the three
-- deltas, inserts the event and its message. Returns a status instead of raising:
--   stored     the event is in the log
--   duplicate, conflict, fenced   see `check_append`. A stored event of this id is looked for only with p_may_be_resent or after
--              a conflict; else the unique index refuses it, and the caller sends the event again with p_may_be_resent.
--   missing    the thread does not exist
--   busy       without p_wait only: another transaction holds the thread's row lock
-- With p_notify the trigger `notify_event_insert` notifies, in this transaction. A caller that notifies after the commit, as the
-- engine does, passes false: NOTIFY holds a lock of the whole server until the commit is flushed and replicated. The setting
-- that the trigger looks at is local to the transaction and reset at once: a later INSERT of the same transaction notifies.
-- The fence (run id, attempt) is given by code that executes a run: it writes only while it holds the run.
-- p_usage is what a model used for the event, see `record_usage`: counted once, with the event.
-- `append_events` applies the same rules to a batch; one event alone takes two thirds of its time here.
CREATE OR REPLACE FUNCTION "public".append_event(
    p_thread_id uuid,
    p_event_id text,
    p_run_id text,
    p_invocation_id text,
    p_author text,
    p_event_type text,
    p_content json,
    p_actions json,
    p_delta jsonb DEFAULT NULL,
    p_user_delta jsonb DEFAULT NULL,
    p_app_delta jsonb DEFAULT NULL,
    p_expected_version bigint DEFAULT NULL,
    p_role text DEFAULT NULL,
    p_text text DEFAULT NULL,
    p_message_id text DEFAULT NULL,
    p_may_be_resent boolean DEFAULT false,
    p_wait boolean DEFAULT true,
    p_snapshot_every integer DEFAULT 0,
    p_max_state_bytes integer DEFAULT 0,
    p_expected_sequence bigint DEFAULT NULL,
    p_expected_user_version bigint DEFAULT NULL,
    p_expected_app_version bigint DEFAULT NULL,
    p_fence_run_id text DEFAULT NULL,
    p_fence_attempt integer DEFAULT NULL,
    p_notify boolean DEFAULT true,
    p_usage json DEFAULT NULL,
    OUT status text,
    OUT sequence_num bigint,
    OUT version bigint,
    OUT created_at timestamptz
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_app_name text;
    v_user_id text;
    v_size integer;
    v_is_as_created boolean;
    v_refused record;
    v_changes_state boolean := p_delta IS NOT NULL OR p_user_delta IS NOT NULL OR p_app_delta IS NOT NULL;
BEGIN
    -- Sequence numbers are taken under this lock, and it is held until the commit: a reader never sees number N + 1 before
    -- number N. NO KEY: foreign keys to the thread do not wait for it.
    IF p_wait THEN
        PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    END IF;
    SELECT t.version, t.last_sequence, t.app_name, t.user_id, t.is_as_created
      INTO version, sequence_num, v_app_name, v_user_id, v_is_as_created
      FROM "public".threads t WHERE t.id = p_thread_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        status := CASE WHEN EXISTS (SELECT FROM "public".threads WHERE id = p_thread_id)
                       THEN 'busy' ELSE 'missing' END;
        RETURN;
    END IF;

    IF p_user_delta IS NOT NULL OR p_app_delta IS NOT NULL THEN
        PERFORM "public".lock_scopes(ARRAY[1], ARRAY[v_app_name], ARRAY[v_user_id], ARRAY[p_user_delta::text],
                                     ARRAY[p_app_delta::text]);
    END IF;
    IF p_expected_version <> version OR p_may_be_resent OR p_fence_run_id IS NOT NULL
       OR p_expected_sequence < sequence_num OR p_expected_user_version IS NOT NULL OR p_expected_app_version IS NOT NULL
    THEN
        SELECT * INTO v_refused
          FROM "public".check_append(p_thread_id, p_event_id, v_app_name, v_user_id, version, sequence_num,
                                     p_may_be_resent, p_expected_version, p_expected_sequence, p_expected_user_version,
                                     p_expected_app_version, p_fence_run_id, p_fence_attempt, 0);
        IF v_refused.status IS NOT NULL THEN
            status := v_refused.status;
            sequence_num := v_refused.sequence_num;
            version := v_refused.version;
            created_at := v_refused.created_at;
            RETURN;
        END IF;
    END IF;

    sequence_num := sequence_num + 1;
    created_at := clock_timestamp();
    IF v_changes_state THEN
        version := version + 1;
    END IF;
    IF p_delta IS NOT NULL THEN
        IF v_is_as_created THEN
            PERFORM "public".snapshot_initial_states(ARRAY[p_thread_id]);
        END IF;
        UPDATE "public".threads t
           SET last_sequence = append_event.sequence_num, version = append_event.version, is_as_created = false,
               updated_at = append_event.created_at, state = "public".merge_state(t.state, p_delta)
         WHERE t.id = p_thread_id
        RETURNING pg_column_size(t.state) INTO v_size;
        PERFORM "public".refuse_large_state('session', v_size, p_max_state_bytes);
    ELSE
        -- Without the column a large state is neither read nor rewritten.
        UPDATE "public".threads t
           SET last_sequence = append_event.sequence_num, version = append_event.version,
               updated_at = append_event.created_at
         WHERE t.id = p_thread_id;
    END IF;
    IF p_user_delta IS NOT NULL THEN
        PERFORM "public".merge_user_state(
            v_app_name, v_user_id, p_user_delta, p_thread_id, sequence_num, created_at, p_max_state_bytes);
    END IF;
    IF p_app_delta IS NOT NULL THEN
        PERFORM "public".merge_app_state(
            v_app_name, p_app_delta, p_thread_id, sequence_num, created_at, p_max_state_bytes);
    END IF;

    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', 'off', true);
    END IF;
    INSERT INTO "public".events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at)
    VALUES (p_thread_id, append_event.sequence_num, p_event_id, v_app_name, p_run_id, p_invocation_id, p_author,
            p_event_type, p_content, p_actions, append_event.version, v_changes_state, append_event.created_at);
    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', '', true);
    END IF;
    IF p_role IS NOT NULL THEN
        INSERT INTO "public".messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
        VALUES (p_thread_id, append_event.sequence_num, p_message_id, p_event_id, v_app_name, p_role, p_text,
                append_event.created_at);
    END IF;
    IF p_usage IS NOT NULL THEN
        PERFORM "public".record_usage(p_thread_id, p_event_id, p_run_id, p_usage, append_event.created_at);
    END IF;
    IF p_snapshot_every > 0 AND sequence_num % p_snapshot_every = 0 THEN
        PERFORM "public".take_snapshot(p_thread_id);
    END IF;
    status := 'stored';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/append_event.sql', 0, '55320290c0e6996ec87275be00408e9d1a590d6b324fc4ace0616ba419ecbc9a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/append_events.sql
-- Appends a batch of events in one transaction, in the order given. The rules and statuses are those of `append_event`, per item,
-- but each table is written by one statement. `p_threads` are distinct; item i belongs to p_threads[p_thread_index[i]]; a batch
-- has no two items of one thread with one id. A null array is an array of nulls.
-- All locks are taken first, each kind in one order, so that two batches never deadlock. Without p_wait an item whose thread is
-- locked by another transaction gets the status `busy`: a batch never waits for one of its items.
CREATE OR REPLACE FUNCTION "public".append_events(
    p_threads uuid[],
    p_thread_index integer[],
    p_event_ids text[],
    p_run_ids text[],
    p_invocation_ids text[],
    p_authors text[],
    p_event_types text[],
    p_contents text[],
    p_actions text[],
    p_deltas text[],
    p_user_deltas text[],
    p_app_deltas text[],
    p_expected_versions bigint[],
    p_roles text[],
    p_texts text[],
    p_message_ids text[],
    p_may_be_resent boolean[],
    p_wait boolean,
    p_snapshot_every integer,
    p_max_state_bytes integer,
    p_expected_sequences bigint[] DEFAULT NULL,
    p_expected_user_versions bigint[] DEFAULT NULL,
    p_expected_app_versions bigint[] DEFAULT NULL,
    p_fence_run_ids text[] DEFAULT NULL,
    p_fence_attempts integer[] DEFAULT NULL,
    p_notify boolean DEFAULT true,
    p_usages text[] DEFAULT NULL
) RETURNS TABLE (status text, sequence_num bigint, version bigint, created_at timestamptz)
LANGUAGE plpgsql
-- The plan is made once, possibly while the tables are empty: these settings keep it good when they have grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    -- by thread
    v_versions bigint[];
    v_sequences bigint[];
    v_app_names text[];
    v_user_ids text[];
    v_as_created uuid[];
    v_deltas jsonb[] := array_fill(NULL::jsonb, ARRAY[cardinality(p_threads)]);
    v_updated timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(p_threads)]);
    v_appended bigint[] := array_fill(0, ARRAY[cardinality(p_threads)]);
    -- by item
    v_items integer := cardinality(p_thread_index);
    v_statuses text[] := array_fill(NULL::text, ARRAY[v_items]);
    v_item_sequences bigint[] := array_fill(NULL::bigint, ARRAY[v_items]);
    v_item_versions bigint[] := array_fill(NULL::bigint, ARRAY[v_items]);
    v_times timestamptz[];
    v_numbers bigint[];
    v_has_wider boolean := p_user_deltas IS NOT NULL OR p_app_deltas IS NOT NULL;
    v_now timestamptz;
    v_has_messages boolean := false;
    v_sequences_matter boolean := cardinality(array_remove(p_expected_sequences, NULL)) > 0;
    v_snapshots uuid[] := '{}';
    v_refused record;
    v_size integer;
    t integer;
BEGIN
    IF p_wait THEN
        PERFORM FROM "public".threads WHERE id = ANY (p_threads) ORDER BY id FOR NO KEY UPDATE;
    END IF;
    WITH locked AS MATERIALIZED (
        SELECT id, version, last_sequence, app_name, user_id, is_as_created
          FROM "public".threads WHERE id = ANY (p_threads) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT array_agg(l.version ORDER BY asked.place), array_agg(l.last_sequence ORDER BY asked.place),
           array_agg(l.app_name ORDER BY asked.place), array_agg(l.user_id ORDER BY asked.place),
           array_agg(l.id) FILTER (WHERE l.is_as_created)
      INTO v_versions, v_sequences, v_app_names, v_user_ids, v_as_created
      FROM unnest(p_threads) WITH ORDINALITY AS asked (id, place) LEFT JOIN locked l ON l.id = asked.id;
    IF v_has_wider THEN
        v_numbers := array_fill(NULL::bigint, ARRAY[v_items]);
        PERFORM "public".lock_scopes(p_thread_index, v_app_names, v_user_ids, p_user_deltas, p_app_deltas);
    END IF;

    v_now := clock_timestamp();
    v_times := array_fill(NULL::timestamptz, ARRAY[v_items]);
    FOR i IN 1 .. v_items LOOP
        t := p_thread_index[i];
        v_times[i] := v_now + i * interval '1 microsecond';
        IF v_sequences[t] IS NULL THEN
            v_statuses[i] := CASE WHEN EXISTS (SELECT FROM "public".threads WHERE id = p_threads[t])
                                  THEN 'busy' ELSE 'missing' END;
            CONTINUE;
        END IF;
        IF p_expected_versions[i] <> v_versions[t] OR p_may_be_resent[i] OR p_fence_run_ids[i] IS NOT NULL
           OR p_expected_sequences[i] < v_sequences[t] OR p_expected_user_versions[i] IS NOT NULL
           OR p_expected_app_versions[i] IS NOT NULL
        THEN
            SELECT * INTO v_refused
              FROM "public".check_append(p_threads[t], p_event_ids[i], v_app_names[t], v_user_ids[t], v_versions[t],
                                         v_sequences[t], p_may_be_resent[i], p_expected_versions[i],
                                         p_expected_sequences[i], p_expected_user_versions[i],
                                         p_expected_app_versions[i], p_fence_run_ids[i], p_fence_attempts[i],
                                         v_appended[t]);
            IF v_refused.status IS NOT NULL THEN
                v_statuses[i] := v_refused.status;
                v_item_sequences[i] := v_refused.sequence_num;
                v_item_versions[i] := v_refused.version;
                v_times[i] := v_refused.created_at;
                CONTINUE;
            END IF;
        END IF;

        v_statuses[i] := 'stored';
        v_updated[t] := v_times[i];
        v_sequences[t] := v_sequences[t] + 1;
        v_item_sequences[i] := v_sequences[t];
        IF p_deltas[i] IS NOT NULL THEN
            -- Delete marks stay in the merged delta as values, so the last item of the batch wins.
            v_deltas[t] := coalesce(v_deltas[t] || p_deltas[i]::jsonb, p_deltas[i]::jsonb);
        END IF;
        IF v_has_wider THEN
            -- The number of this event and of its writes, in the order of the batch.
            v_numbers[i] := nextval('"public".write_numbers');
        END IF;
        IF p_user_deltas[i] IS NOT NULL THEN
            PERFORM "public".merge_user_state(v_app_names[t], v_user_ids[t], p_user_deltas[i]::jsonb, p_threads[t],
                                              v_sequences[t], v_times[i], p_max_state_bytes, v_numbers[i]);
        END IF;
        IF p_app_deltas[i] IS NOT NULL THEN
            PERFORM "public".merge_app_state(v_app_names[t], p_app_deltas[i]::jsonb, p_threads[t], v_sequences[t],
                                             v_times[i], p_max_state_bytes, v_numbers[i]);
        END IF;
        IF coalesce(p_deltas[i], p_user_deltas[i], p_app_deltas[i]) IS NOT NULL THEN
            v_versions[t] := v_versions[t] + 1;
        END IF;
        v_item_versions[i] := v_versions[t];
        IF v_sequences_matter AND "public".is_conversation(
            p_event_types[i], coalesce(p_deltas[i], p_user_deltas[i], p_app_deltas[i]) IS NOT NULL, p_contents[i]
        ) THEN
            v_appended[t] := v_sequences[t];
        END IF;
        v_has_messages := v_has_messages OR p_roles[i] IS NOT NULL;
        IF p_snapshot_every > 0 AND v_sequences[t] % p_snapshot_every = 0 THEN
            v_snapshots := v_snapshots || p_threads[t];
        END IF;
    END LOOP;

    IF v_as_created IS NOT NULL THEN
        PERFORM "public".snapshot_initial_states(array_agg(head.thread_id))
           FROM unnest(p_threads, v_deltas) AS head (thread_id, delta)
          WHERE head.delta IS NOT NULL AND head.thread_id = ANY (v_as_created);
    END IF;
    -- With CASE, a large state without a delta is neither read nor rewritten.
    WITH changed AS (
        UPDATE "public".threads
           SET last_sequence = head.sequence_num, version = head.version, updated_at = head.updated_at,
               is_as_created = is_as_created AND head.delta IS NULL,
               state = CASE WHEN head.delta IS NULL THEN state ELSE "public".merge_state(state, head.delta) END
          FROM unnest(p_threads, v_sequences, v_versions, v_deltas, v_updated)
               AS head (thread_id, sequence_num, version, delta, updated_at)
         WHERE id = head.thread_id AND head.updated_at IS NOT NULL
        RETURNING CASE WHEN head.delta IS NOT NULL THEN pg_column_size(state) END AS size
    )
    SELECT max(size) INTO v_size FROM changed;
    PERFORM "public".refuse_large_state('session', v_size, p_max_state_bytes);

    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', 'off', true);
    END IF;
    INSERT INTO "public".events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at, write_number)
    SELECT p_threads[item.thread], item.sequence_num, item.event_id, v_app_names[item.thread], item.run_id,
           item.invocation_id, item.author, item.event_type, item.content::json, item.actions::json, item.version,
           coalesce(item.delta, item.user_delta, item.app_delta) IS NOT NULL, item.created_at,
           coalesce(item.write_number, nextval('"public".write_numbers'))
      FROM unnest(p_thread_index, p_event_ids, p_run_ids, p_invocation_ids, p_authors, p_event_types, p_contents,
                  p_actions, p_deltas, p_user_deltas, p_app_deltas, v_item_sequences, v_item_versions, v_statuses,
                  v_times, v_numbers)
           AS item (thread, event_id, run_id, invocation_id, author, event_type, content, actions, delta, user_delta,
                    app_delta, sequence_num, version, status, created_at, write_number)
     WHERE item.status = 'stored';
    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', '', true);
    END IF;
    IF v_has_messages THEN
        INSERT INTO "public".messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
        SELECT p_threads[item.thread], item.sequence_num, item.message_id, item.event_id, v_app_names[item.thread],
               item.role, item.body, item.created_at
          FROM unnest(p_thread_index, p_event_ids, p_roles, p_texts, p_message_ids, v_item_sequences, v_statuses,
                      v_times)
               AS item (thread, event_id, role, body, message_id, sequence_num, status, created_at)
         WHERE item.status = 'stored' AND item.role IS NOT NULL;
    END IF;
    IF p_usages IS NOT NULL THEN
        PERFORM "public".record_usage(p_threads[item.thread], item.event_id, item.run_id, item.usage::json, item.created_at)
           FROM unnest(p_thread_index, p_event_ids, p_run_ids, p_usages, v_statuses, v_times)
                AS item (thread, event_id, run_id, usage, status, created_at)
          WHERE item.status = 'stored' AND item.usage IS NOT NULL;
    END IF;
    PERFORM "public".take_snapshot(id) FROM unnest(v_snapshots) AS due (id);

    RETURN QUERY SELECT * FROM unnest(v_statuses, v_item_sequences, v_item_versions, v_times);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/append_events.sql', 0, 'f95a880419d9730db65a7ef72afeb3e27b3aa360feb509da30e4cea18cc11ddc', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/check_append.sql
-- Returns why an event cannot be appended to a thread; a null status if it can. `append_event` and `append_events` call it when a
-- condition was given that their own comparison does not settle. The caller holds the thread's row lock, so the answer holds
-- until the commit.
--   fenced     the run of the fence is not executed by that attempt
--   duplicate  an event of this id exists; the caller compares the contents
--   conflict   the version of the thread or of a wider scope is not the expected one, or an event of the conversation follows the
--              expected sequence number (events about runs do not count). A sender that lost an answer does not know the version
--              that its event made, so a duplicate takes precedence.
-- p_appended is the sequence number of the last event of the conversation that the caller's batch appends to the thread.
CREATE OR REPLACE FUNCTION "public".check_append(
    p_thread_id uuid,
    p_event_id text,
    p_app_name text,
    p_user_id text,
    p_version bigint,
    p_sequence bigint,
    p_may_be_resent boolean,
    p_expected_version bigint,
    p_expected_sequence bigint,
    p_expected_user_version bigint,
    p_expected_app_version bigint,
    p_fence_run_id text,
    p_fence_attempt integer,
    p_appended bigint,
    OUT status text,
    OUT sequence_num bigint,
    OUT version bigint,
    OUT created_at timestamptz
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_in_conflict boolean := coalesce(p_expected_version <> p_version, false);
BEGIN
    IF p_fence_run_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM "public".runs r
         WHERE r.thread_id = p_thread_id AND r.id = p_fence_run_id AND r.status = 'running'
           AND r.attempt = p_fence_attempt
    ) THEN
        status := 'fenced';
        RETURN;
    END IF;
    v_in_conflict := v_in_conflict
        OR coalesce(p_expected_user_version, p_expected_app_version) IS NOT NULL AND "public".scopes_changed(
               p_app_name, p_user_id, p_expected_user_version, p_expected_app_version)
        OR p_expected_sequence IS NOT NULL AND p_expected_sequence < p_sequence
           AND (p_expected_sequence < p_appended
                OR "public".has_conversation_after(p_thread_id, p_expected_sequence));
    IF v_in_conflict OR p_may_be_resent THEN
        SELECT 'duplicate', e.sequence_num, e.version, e.created_at INTO status, sequence_num, version, created_at
          FROM "public".events e
         WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id);
    END IF;
    IF v_in_conflict AND status IS NULL THEN
        status := 'conflict';
        sequence_num := p_sequence;
        version := p_version;
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/check_append.sql', 0, '0118d45e7ef9f79d3fef0423bef1a3ac38baf88ec8d57c024e5c147f07c47fb0', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/fill_event_defaults.sql
-- Trigger: an INSERT in psql needs only a thread and a type. The sequence number is assigned here, under the row lock that
-- the engine's appends take.
-- A `state_update` that follows an UPDATE of the thread's version, records that change: its
-- content is the delta, so that time travel, history and subscribers see it.
CREATE OR REPLACE FUNCTION "public".fill_event_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_delta json := NEW.actions -> 'state_delta';
BEGIN
    UPDATE "public".threads
       SET last_sequence = last_sequence + 1
     WHERE id = NEW.thread_id
    RETURNING last_sequence, app_name, version INTO NEW.sequence_num, NEW.app_name, NEW.version;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    IF v_delta IS NULL AND NEW.event_type = 'state_update' AND json_typeof(NEW.content) = 'object' THEN
        v_delta := NEW.content;
    END IF;
    IF json_typeof(v_delta) = 'object' AND NEW.version > coalesce(
        (SELECT e.version FROM "public".events e
          WHERE e.thread_id = NEW.thread_id AND e.sequence_num = NEW.sequence_num - 1), 1)
    THEN
        NEW.changes_state := true;
        NEW.actions := NEW.actions::jsonb || jsonb_build_object('state_delta', v_delta);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_event_defaults
    BEFORE INSERT ON "public".events
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION "public".fill_event_defaults();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/fill_event_defaults.sql', 0, 'de08ef660a33242f8724ab21bbb7d68107e53f800d6f7a52beb8c48980f6f4df', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/has_conversation_after.sql
-- Returns whether an event of the conversation follows a sequence number.
CREATE OR REPLACE FUNCTION "public".has_conversation_after(p_thread_id uuid, p_sequence bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM "public".events e
         WHERE e.thread_id = p_thread_id AND e.sequence_num > p_sequence
           AND "public".is_conversation(e.event_type, e.changes_state, e.content::text))
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/has_conversation_after.sql', 0, '9f62f68908483f5258f78e2e637cb5bafd7413c8de7954f0a62345f4d09dd213', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/import_events.sql
-- Adds events of another store to a thread, with their times, and sets its state to the state after them. Deltas are not
-- applied: user and app states are imported separately. Returns false if the thread was deleted, or if its head is not the
-- expected one.
CREATE OR REPLACE FUNCTION "public".import_events(
    p_thread_id uuid,
    p_after bigint,
    p_event_ids text[],
    p_invocation_ids text[],
    p_authors text[],
    p_event_types text[],
    p_contents text[],
    p_actions text[],
    p_changes_state boolean[],
    p_roles text[],
    p_texts text[],
    p_message_ids text[],
    p_times timestamptz[],
    p_state jsonb,
    p_created_at timestamptz,
    p_updated_at timestamptz
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_app_name text;
    v_version bigint;
BEGIN
    SELECT app_name, version INTO v_app_name, v_version
      FROM "public".threads WHERE id = p_thread_id AND last_sequence = p_after FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO "public".events (thread_id, sequence_num, id, app_name, invocation_id, author, event_type, content,
                                 actions, version, changes_state, created_at, write_number)
    SELECT p_thread_id, p_after + item.place, item.id, v_app_name, item.invocation_id, item.author, item.event_type,
           item.content::json, item.actions::json,
           v_version + count(*) FILTER (WHERE item.changes_state) OVER (ORDER BY item.place), item.changes_state,
           item.created_at, NULL -- it precedes every event that was written here
      FROM unnest(p_event_ids, p_invocation_ids, p_authors, p_event_types, p_contents, p_actions, p_changes_state,
                  p_times) WITH ORDINALITY
           AS item (id, invocation_id, author, event_type, content, actions, changes_state, created_at, place);
    INSERT INTO "public".messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
    SELECT p_thread_id, p_after + item.place, item.id, item.event_id, v_app_name, item.role, item.body, item.created_at
      FROM unnest(p_message_ids, p_event_ids, p_roles, p_texts, p_times) WITH ORDINALITY
           AS item (id, event_id, role, body, created_at, place)
     WHERE item.role IS NOT NULL;
    PERFORM "public".snapshot_initial_states(ARRAY[p_thread_id]);
    UPDATE "public".threads
       SET is_as_created = false,
           last_sequence = p_after + cardinality(p_event_ids),
           version = v_version + cardinality(array_positions(p_changes_state, true)),
           state = p_state,
           metadata = metadata || jsonb_build_object('imported_events', p_after + cardinality(p_event_ids)),
           began_at = p_created_at,
           began_number = NULL,
           created_at = p_created_at,
           updated_at = p_updated_at
     WHERE id = p_thread_id;
    RETURN true;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/import_events.sql', 0, '2241123ec7b7b69800fe58dedac01234370cd7db57ff9fa7767084c319fd9518', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/is_conversation.sql
-- Returns whether an event belongs to the conversation of an ADK session: events of ADK, which start with its mark, and of
-- other events messages and state changes. Events about runs do not, so they make no session stale.
-- The first bytes of the text are compared, not parsed: it may contain \u0000, which the JSON operators refuse. Spaces between
-- them do not count: an event may be typed in psql.
CREATE OR REPLACE FUNCTION "public".is_conversation(p_event_type text, p_changes_state boolean, p_content text)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_changes_state
        OR p_event_type IN ('user_message', 'assistant_message', 'system_message', 'message')
        OR left(p_content, 60) ~ '^\s*\{\s*"adk"\s*:'
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/is_conversation.sql', 0, 'a1cb0b9e4ad705edcc5e031c7b252a6d3b425c250b13cbfddfdfc5f2d967f8f3', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/notify_event_insert.sql
-- Trigger: every committed event sends a notification, also one of an INSERT in psql. The payload has the ids of the row and
-- no content; long ids are cut, because a payload over 8000 bytes would fail the append. Readers read the row.
-- It does not fire for the append functions without p_notify: their caller sends the same payload after the commit.
CREATE OR REPLACE FUNCTION "public".notify_event_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('event_stream', json_build_object(
        'event_id', left(id, 200),
        'thread_id', thread_id,
        'sequence_num', sequence_num,
        'run_id', left(run_id, 200),
        'author', left(author, 200),
        'event_type', left(event_type, 200),
        'created_at', created_at
    )::text) FROM inserted;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER notify_event_insert
    AFTER INSERT ON "public".events
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (current_setting('cognizes.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION "public".notify_event_insert();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/notify_event_insert.sql', 0, '380c0cc77737bdd76fd35c11f10b49b3fe586d54ae67af2f19dbc402a09ae079', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- events/refuse_event_change.sql
-- Events are append-only. Deleting a thread deletes its events: that DELETE comes from the trigger of the foreign key, so it
-- is one level deeper than a DELETE that a client sends. The triggers fire once for a statement and not for an INSERT, so an
-- append does not pay for them.
CREATE OR REPLACE FUNCTION "public".refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND pg_trigger_depth() > 1 THEN
        RETURN NULL;
    END IF;
    RAISE restrict_violation USING
        MESSAGE = format('events are append-only: %s is refused', TG_OP),
        HINT = 'Append another event. Deleting a thread (DELETE FROM threads WHERE id = ...) deletes its events.';
END
$$;

CREATE OR REPLACE TRIGGER refuse_event_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON "public".events
    FOR EACH STATEMENT EXECUTE FUNCTION "public".refuse_event_change();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('events/refuse_event_change.sql', 0, '876051292d24b69f78a6952736557b4eff46f4847a77920b721b34095168dbcd', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graph_items/list_graph_namespaces.sql
-- Return whether the labels of a namespace match all conditions, an array of {"type": "prefix" | "suffix", "path": […]}.
-- The label * of a path matches any label.
CREATE OR REPLACE FUNCTION "public".graph_namespace_matches(p_labels text[], p_conditions jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM (SELECT ARRAY(SELECT jsonb_array_elements_text(c -> 'path')) AS path,
                            CASE c ->> 'type' WHEN 'suffix'
                                 THEN cardinality(p_labels) - jsonb_array_length(c -> 'path') ELSE 0 END AS before
                       FROM jsonb_array_elements(p_conditions) c) condition
         WHERE cardinality(path) > cardinality(p_labels)
            OR EXISTS (SELECT FROM unnest(path) WITH ORDINALITY AS wanted (label, place)
                        WHERE wanted.label <> '*' AND wanted.label <> p_labels[before + wanted.place]))
$$;

-- Return the namespaces of a store that begin with a prefix and match all conditions, cut to a depth, in order.
CREATE OR REPLACE FUNCTION "public".list_graph_namespaces(
    p_app_name text, p_prefix text, p_conditions text, p_max_depth integer, p_limit integer, p_offset integer,
    p_omit_expired boolean
) RETURNS SETOF text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_end text := CASE p_prefix WHEN '' THEN chr(1114111) ELSE left(p_prefix, -1) || '/' END;
    v_conditions jsonb := p_conditions;
BEGIN
    RETURN QUERY
        SELECT DISTINCT (CASE WHEN p_max_depth IS NULL THEN n.labels ELSE n.labels[1:p_max_depth] END) COLLATE "C" AS labels
          FROM (SELECT string_to_array(left(stored.namespace, -1), '.') AS labels
                  FROM (SELECT DISTINCT i.namespace FROM "public".graph_items i
                         WHERE i.app_name = p_app_name AND i.namespace >= p_prefix AND i.namespace < v_end
                           AND (NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp())) stored) n
         WHERE "public".graph_namespace_matches(n.labels, v_conditions)
         ORDER BY labels LIMIT p_limit OFFSET p_offset;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graph_items/list_graph_namespaces.sql', 0, 'f23e7bb098b33f46e7fd1699aaf1ab0d4f5b8f916cd920e07efb3569909f553e', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graph_items/prune_graph_items.sql
-- Delete up to p_limit expired items of graphs' stores. Returns their number.
CREATE OR REPLACE FUNCTION "public".prune_graph_items(p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM "public".graph_items i
         USING (SELECT id FROM "public".graph_items WHERE expires_at < now()
                 ORDER BY expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED) expired
         WHERE i.id = expired.id RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graph_items/prune_graph_items.sql', 0, 'e3f917d63cca24fc05f0ba767bed1ca7aa34fc84275ae656c8494ecb7a6293d4', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graph_items/put_graph_items.sql
-- Store items of a graph's store, replace those that exist with their vectors, and delete those whose value is null. Each
-- item occurs once. `p_vector_items` has the place of the item, from 1, to which a vector belongs. Runs with an attempt must
-- be held by it (see check_fence).
CREATE OR REPLACE FUNCTION "public".put_graph_items(
    p_app_name text, p_namespaces text[], p_keys text[], p_values text[], p_users text[], p_ttls double precision[],
    p_vector_items integer[], p_models text[], p_vectors text[],
    p_fence_thread_ids uuid[], p_fence_run_ids text[], p_fence_attempts integer[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM "public".check_fence(f.thread_id, f.run_id, f.attempt)
       FROM (SELECT DISTINCT thread_id, run_id, attempt
               FROM unnest(p_fence_thread_ids, p_fence_run_ids, p_fence_attempts) AS fence (thread_id, run_id, attempt)
              ORDER BY thread_id) f;
    -- All rows in one order before the first change: two writers of the same items cannot wait for each other.
    PERFORM FROM (SELECT i.id
                    FROM unnest(p_namespaces, p_keys) AS new (namespace, key)
                    JOIN "public".graph_items i
                      ON i.app_name = p_app_name AND i.namespace = new.namespace AND md5(i.key) = md5(new.key)
                   ORDER BY i.namespace, md5(i.key) FOR UPDATE OF i) locked;
    DELETE FROM "public".graph_items i
     USING unnest(p_namespaces, p_keys, p_values) AS old (namespace, key, value)
     WHERE old.value IS NULL
       AND i.app_name = p_app_name AND i.namespace = old.namespace AND md5(i.key) = md5(old.key) AND i.key = old.key;
    INSERT INTO "public".graph_items AS i (app_name, user_id, namespace, key, value, ttl, expires_at)
    SELECT p_app_name, new.user_id, new.namespace, new.key, new.value::jsonb, make_interval(secs => new.ttl),
           clock_timestamp() + make_interval(secs => new.ttl)
      FROM unnest(p_namespaces, p_keys, p_values, p_users, p_ttls) AS new (namespace, key, value, user_id, ttl)
     WHERE new.value IS NOT NULL
     ORDER BY new.namespace COLLATE "C", md5(new.key)
    ON CONFLICT (app_name, namespace, md5(key)) DO UPDATE
       SET user_id = excluded.user_id, value = excluded.value, ttl = excluded.ttl, expires_at = excluded.expires_at,
           updated_at = clock_timestamp();
    SELECT array_agg(i.id ORDER BY new.place) INTO v_ids
      FROM unnest(p_namespaces, p_keys) WITH ORDINALITY AS new (namespace, key, place)
      LEFT JOIN "public".graph_items i
        ON i.app_name = p_app_name AND i.namespace = new.namespace AND md5(i.key) = md5(new.key) AND i.key = new.key;
    DELETE FROM "public".graph_item_vectors v WHERE v.item_id = ANY (v_ids);
    INSERT INTO "public".graph_item_vectors (item_id, position, app_name, model, embedding)
    SELECT v_ids[new.item], new.place, p_app_name, new.model, new.embedding::halfvec
      FROM unnest(p_vector_items, p_models, p_vectors) WITH ORDINALITY AS new (item, model, embedding, place);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graph_items/put_graph_items.sql', 0, '53a3ce97eb0b6e3b32c0fe9f32a3a8ff404c07f4bfaee88dc2dcc1e5eaa3acdf', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graph_items/read_graph_items.sql
-- Let items with a ttl expire that long after now. An item that a writer has locked is left out: the write sets its expiry.
-- A refresh that would add less than a hundredth of the ttl is left out, so that frequent reads do not write.
CREATE OR REPLACE FUNCTION "public".refresh_graph_items(p_ids bigint[]) RETURNS void LANGUAGE sql AS $$
    UPDATE "public".graph_items i SET expires_at = clock_timestamp() + i.ttl
      FROM (SELECT id FROM "public".graph_items
             WHERE id = ANY (p_ids) AND ttl IS NOT NULL AND expires_at < clock_timestamp() + ttl * 0.99
             FOR NO KEY UPDATE SKIP LOCKED) due
     WHERE i.id = due.id
$$;

-- Return the stored items among (namespace, key) pairs, each with its place from 1; those of p_refresh live longer.
CREATE OR REPLACE FUNCTION "public".get_graph_items(
    p_app_name text, p_namespaces text[], p_keys text[], p_refresh boolean[], p_omit_expired boolean
) RETURNS TABLE (place bigint, value text, created_at timestamptz, updated_at timestamptz) LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
    v_places bigint[];
    v_refresh bigint[];
BEGIN
    SELECT array_agg(i.id), array_agg(wanted.place), array_agg(i.id) FILTER (WHERE wanted.refresh AND i.ttl IS NOT NULL)
      INTO v_ids, v_places, v_refresh
      FROM unnest(p_namespaces, p_keys, p_refresh) WITH ORDINALITY AS wanted (namespace, key, refresh, place)
      JOIN "public".graph_items i
        ON i.app_name = p_app_name AND i.namespace = wanted.namespace AND md5(i.key) = md5(wanted.key)
           AND i.key = wanted.key
     WHERE NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp();
    IF v_refresh IS NOT NULL THEN
        PERFORM "public".refresh_graph_items(v_refresh);
    END IF;
    RETURN QUERY
        SELECT found.place, i.value::text, i.created_at, i.updated_at
          FROM unnest(v_ids, v_places) AS found (id, place) JOIN "public".graph_items i ON i.id = found.id;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graph_items/read_graph_items.sql', 0, 'a1198e9ab3db0bc8e0e32ea8eff8ab3b78ba9722d2bd3331be1405be22edd201', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graph_items/search_graph_items.sql
-- Return a number of an item's value: JSON's, or one that is stored as {"$float": …}; null for anything else.
CREATE OR REPLACE FUNCTION "public".graph_item_number(p_value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(p_value) = 'number' THEN p_value::numeric
                WHEN jsonb_typeof(p_value -> '$float') = 'string' THEN (p_value ->> '$float')::numeric END
$$;

-- Return whether two JSON values compare like this: numbers by value, texts by code point, other pairs never.
CREATE OR REPLACE FUNCTION "public".graph_item_compares(p_value jsonb, p_operator text, p_with jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE p_operator WHEN '$gt' THEN c.sign > 0 WHEN '$gte' THEN c.sign >= 0
                                    WHEN '$lt' THEN c.sign < 0 WHEN '$lte' THEN c.sign <= 0 END, false)
      FROM (SELECT CASE WHEN jsonb_typeof(p_value) = 'string' AND jsonb_typeof(p_with) = 'string'
                        THEN CASE WHEN p_value #>> '{}' < p_with #>> '{}' COLLATE "C" THEN -1
                                  WHEN p_value #>> '{}' = p_with #>> '{}' THEN 0 ELSE 1 END
                        ELSE sign("public".graph_item_number(p_value) - "public".graph_item_number(p_with)) END AS sign) c
$$;

-- Return whether the value of an item passes all conditions, an array of {"path": […], "operator": …, "value": …}. A
-- missing value is null.
CREATE OR REPLACE FUNCTION "public".graph_item_passes(p_value jsonb, p_conditions jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM (SELECT c ->> 'operator' AS operator, c -> 'value' AS expected,
                            coalesce(p_value #> ARRAY(SELECT jsonb_array_elements_text(c -> 'path')), 'null') AS found
                       FROM jsonb_array_elements(p_conditions) c) condition
         WHERE NOT CASE operator
                   WHEN '$eq' THEN found = expected
                   WHEN '$ne' THEN found <> expected
                   WHEN 'type' THEN jsonb_typeof(found) = expected #>> '{}'
                   WHEN 'length' THEN jsonb_typeof(found) = 'array' AND jsonb_array_length(
                        CASE WHEN jsonb_typeof(found) = 'array' THEN found ELSE '[]' END) = expected::integer
                   ELSE "public".graph_item_compares(found, operator, expected) END)
$$;

-- Return the items below a namespace whose values pass the conditions: without a vector the newest first, else the nearest
-- first with their score, and then those without a vector of the model. An item with several vectors counts with its nearest.
CREATE OR REPLACE FUNCTION "public".search_graph_items(
    p_app_name text, p_prefix text, p_conditions text, p_vector text, p_model text, p_distance text,
    p_limit integer, p_offset integer, p_refresh boolean, p_omit_expired boolean
) RETURNS TABLE (namespace text, key text, value text, created_at timestamptz, updated_at timestamptz,
                 score double precision) LANGUAGE plpgsql AS $$
DECLARE
    v_end text := CASE p_prefix WHEN '' THEN chr(1114111) ELSE left(p_prefix, -1) || '/' END;
    v_conditions jsonb := p_conditions;
    v_vector halfvec := p_vector;
    v_ids bigint[];
    v_distances double precision[];
BEGIN
    IF v_vector IS NULL THEN
        v_ids := ARRAY(
            SELECT i.id FROM "public".graph_items i
             WHERE i.app_name = p_app_name AND i.namespace >= p_prefix AND i.namespace < v_end
               AND (NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp())
               AND (v_conditions IS NULL OR "public".graph_item_passes(i.value, v_conditions))
             ORDER BY i.updated_at DESC, i.id DESC LIMIT p_limit OFFSET p_offset);
    ELSE
        SELECT array_agg(f.id ORDER BY f.distance, f.updated_at DESC, f.id DESC),
               array_agg(f.distance ORDER BY f.distance, f.updated_at DESC, f.id DESC)
          INTO v_ids, v_distances
          FROM (SELECT i.id, i.updated_at,
                       min(nullif(CASE p_distance WHEN 'l2' THEN v.embedding <-> v_vector
                                                  WHEN 'inner_product' THEN v.embedding <#> v_vector
                                                  ELSE v.embedding <=> v_vector END, 'NaN')) AS distance
                  FROM "public".graph_items i
                  LEFT JOIN "public".graph_item_vectors v ON v.item_id = i.id AND v.model = p_model
                 WHERE i.app_name = p_app_name AND i.namespace >= p_prefix AND i.namespace < v_end
                   AND (NOT p_omit_expired OR i.expires_at IS NULL OR i.expires_at > clock_timestamp())
                   AND (v_conditions IS NULL OR "public".graph_item_passes(i.value, v_conditions))
                 GROUP BY i.id
                 ORDER BY distance, i.updated_at DESC, i.id DESC LIMIT p_limit OFFSET p_offset) f;
    END IF;
    IF p_refresh THEN
        PERFORM "public".refresh_graph_items(v_ids);
    END IF;
    RETURN QUERY
        SELECT i.namespace, i.key, i.value::text, i.created_at, i.updated_at,
               CASE WHEN p_distance = 'cosine' THEN 1 - v_distances[found.place] ELSE - v_distances[found.place] END
          FROM unnest(v_ids) WITH ORDINALITY AS found (id, place) JOIN "public".graph_items i ON i.id = found.id
         ORDER BY found.place;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graph_items/search_graph_items.sql', 0, '699c7fd8fff28601740756e2c63ba864fce9858542e18ead3228bba0a4e3d531', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/copy_graph_thread.sql
-- Copy the checkpoints, channel values and writes of a thread to another thread id. What the target has stays.
CREATE OR REPLACE FUNCTION "public".copy_graph_thread(p_app_name text, p_source text, p_target text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_source record;
    v_target bigint;
BEGIN
    FOR v_source IN
        SELECT id, checkpoint_ns FROM "public".graph_namespaces
         WHERE md5(thread_id) = md5(p_source) AND app_name = p_app_name AND thread_id = p_source
         ORDER BY id
           FOR KEY SHARE
    LOOP
        v_target := "public".open_graph_namespace(p_app_name, p_target, v_source.checkpoint_ns);
        INSERT INTO "public".graph_channels (namespace_id, channel, version, app_name, type, value)
        SELECT v_target, channel, version, app_name, type, value
          FROM "public".graph_channels WHERE namespace_id = v_source.id
        ON CONFLICT (namespace_id, md5(channel), version) DO NOTHING;
        INSERT INTO "public".graph_checkpoints (
            namespace_id, checkpoint_id, parent_id, app_name, run_id, type, checkpoint, metadata, channels, versions,
            inlined, written_by, created_at)
        SELECT v_target, checkpoint_id, parent_id, app_name, run_id, type, checkpoint, metadata, channels, versions,
               inlined, written_by, created_at
          FROM "public".graph_checkpoints WHERE namespace_id = v_source.id
        ON CONFLICT (namespace_id, checkpoint_id) DO NOTHING;
        INSERT INTO "public".graph_writes (
            namespace_id, checkpoint_id, task_id, position, task_path, app_name, channel, type, value)
        SELECT v_target, checkpoint_id, task_id, position, task_path, app_name, channel, type, value
          FROM "public".graph_writes WHERE namespace_id = v_source.id
        ON CONFLICT (namespace_id, checkpoint_id, task_id, position) DO NOTHING;
    END LOOP;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/copy_graph_thread.sql', 0, 'ca517555a15ab60f8de7bfa2e2ffa7bb672f7c8e376acab4dc78d6463c57eacd', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/delete_graph_threads.sql
-- Delete the checkpoints of threads in all their namespaces. Returns the number of namespaces.
CREATE OR REPLACE FUNCTION "public".delete_graph_threads(p_app_name text, p_thread_ids text[]) RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM "public".graph_namespaces n
         USING (SELECT DISTINCT unnest(p_thread_ids) AS thread_id) t
         WHERE md5(n.thread_id) = md5(t.thread_id) AND n.app_name = p_app_name AND n.thread_id = t.thread_id
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

-- Trigger: delete the checkpoints of deleted threads. Every app may use the id of a thread as the id of its graph's thread.
CREATE OR REPLACE FUNCTION "public".forget_graph_threads() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    DELETE FROM "public".graph_namespaces n USING gone g
     WHERE md5(n.thread_id) = md5(g.id::text) AND n.thread_id = g.id::text;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER forget_graph_threads AFTER DELETE ON "public".threads
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION "public".forget_graph_threads();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/delete_graph_threads.sql', 0, '5db4df292a5671c0c025c2f806d44984ced5b5a2562324f14c1087410a275da2', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/graph_channel_history.sql
-- What LangGraph rebuilds delta channels of a checkpoint from: for each channel, the ancestors back to the nearest one with a
-- value of it, newest first. `is_seed` marks that one; its value is `type` and `value`, or in the document if it is
-- inlined. The other columns are the writes to the channel after an ancestor, null where it has none.
CREATE OR REPLACE FUNCTION "public".graph_channel_history(
    p_app_name text, p_thread_id text, p_checkpoint_ns text, p_checkpoint_id text, p_channels text[]
) RETURNS TABLE (
    channel text, depth integer, checkpoint_id text, is_seed boolean, type text, value bytea, document_type text,
    document bytea, written_by text, task_ids text[], write_types text[], write_values bytea[]
) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE target AS (
        SELECT c.namespace_id, c.parent_id
          FROM "public".graph_namespaces n
          JOIN "public".graph_checkpoints c ON c.namespace_id = n.id
         WHERE md5(n.thread_id) = md5(p_thread_id) AND n.app_name = p_app_name
           AND md5(n.checkpoint_ns) = md5(p_checkpoint_ns) AND n.thread_id = p_thread_id
           AND n.checkpoint_ns = p_checkpoint_ns
           AND (p_checkpoint_id IS NULL OR c.checkpoint_id = p_checkpoint_id)
         ORDER BY c.checkpoint_id DESC
         LIMIT 1
    ), walk AS (
        SELECT 1 AS depth, c.namespace_id, c.checkpoint_id, c.parent_id, p_channels AS wanted,
               ARRAY(SELECT unnest(p_channels) EXCEPT SELECT unnest(c.channels || c.inlined)) AS remaining
          FROM target t
          JOIN "public".graph_checkpoints c ON c.namespace_id = t.namespace_id AND c.checkpoint_id = t.parent_id
        UNION ALL
        SELECT w.depth + 1, c.namespace_id, c.checkpoint_id, c.parent_id, w.remaining,
               ARRAY(SELECT unnest(w.remaining) EXCEPT SELECT unnest(c.channels || c.inlined))
          FROM walk w
          JOIN "public".graph_checkpoints c ON c.namespace_id = w.namespace_id AND c.checkpoint_id = w.parent_id
         WHERE w.remaining <> '{}'
    )
    SELECT wanted.channel, w.depth, w.checkpoint_id, wanted.channel <> ALL (w.remaining), stored.type, stored.value,
           c.type, CASE WHEN wanted.channel = ANY (c.inlined) THEN c.checkpoint END, c.written_by,
           writes.task_ids, writes.types, writes.values
      FROM walk w
     CROSS JOIN LATERAL unnest(w.wanted) AS wanted (channel)
      JOIN "public".graph_checkpoints c ON c.namespace_id = w.namespace_id AND c.checkpoint_id = w.checkpoint_id
      LEFT JOIN "public".graph_channels stored
        ON wanted.channel <> ALL (w.remaining) AND stored.namespace_id = w.namespace_id
       AND md5(stored.channel) = md5(wanted.channel) AND stored.channel = wanted.channel
       AND stored.version = c.versions[array_position(c.channels, wanted.channel)]
     CROSS JOIN LATERAL (
           SELECT array_agg(g.task_id ORDER BY g.task_path, g.task_id, g.position) AS task_ids,
                  array_agg(g.type ORDER BY g.task_path, g.task_id, g.position) AS types,
                  array_agg(g.value ORDER BY g.task_path, g.task_id, g.position) AS values
             FROM "public".graph_writes g
            WHERE g.namespace_id = w.namespace_id AND g.checkpoint_id = w.checkpoint_id AND g.channel = wanted.channel
           ) writes
     ORDER BY wanted.channel, w.depth
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/graph_channel_history.sql', 0, 'b48393625fc2a68776b2856f94c63626d7498c7aa69ca225117712af26ab7d55', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/graph_channel_values.sql
-- The channel values of a checkpoint; one row, with nulls if it has none.
CREATE OR REPLACE FUNCTION "public".graph_channel_values(
    p_namespace_id bigint, p_channels text[], p_versions text[],
    OUT channels text[], OUT types text[], OUT "values" bytea[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(v.channel), array_agg(v.type), array_agg(v.value)
      FROM unnest(p_channels, p_versions) AS wanted (channel, version)
      JOIN "public".graph_channels v
        ON v.namespace_id = p_namespace_id AND md5(v.channel) = md5(wanted.channel) AND v.version = wanted.version
       AND v.channel = wanted.channel
$$;

-- The writes after a checkpoint, in the order in which LangGraph applies them; one row, with nulls if there are none.
CREATE OR REPLACE FUNCTION "public".graph_pending_writes(
    p_namespace_id bigint, p_checkpoint_id text,
    OUT task_ids text[], OUT channels text[], OUT types text[], OUT "values" bytea[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(w.task_id), array_agg(w.channel), array_agg(w.type), array_agg(w.value)
      FROM (SELECT * FROM "public".graph_writes
             WHERE namespace_id = p_namespace_id AND checkpoint_id = p_checkpoint_id
             ORDER BY task_path, task_id, position) w
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/graph_channel_values.sql', 0, '57241492805776af28aacf01d18aa789ec66e45b6a4004b9d7d0a9a480747656', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/open_graph_namespace.sql
-- Return the id of a namespace of a graph's thread; create it if it does not exist.
-- The lock of the row lasts until the commit: a deletion of the thread waits for the writer or comes before it.
CREATE OR REPLACE FUNCTION "public".open_graph_namespace(p_app_name text, p_thread_id text, p_checkpoint_ns text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_id bigint;
BEGIN
    LOOP
        SELECT id INTO v_id FROM "public".graph_namespaces
         WHERE md5(thread_id) = md5(p_thread_id) AND app_name = p_app_name AND md5(checkpoint_ns) = md5(p_checkpoint_ns)
           AND thread_id = p_thread_id AND checkpoint_ns = p_checkpoint_ns
           FOR KEY SHARE;
        IF FOUND THEN
            RETURN v_id;
        END IF;
        INSERT INTO "public".graph_namespaces (app_name, thread_id, checkpoint_ns)
        VALUES (p_app_name, p_thread_id, p_checkpoint_ns)
        ON CONFLICT (md5(thread_id), app_name, md5(checkpoint_ns)) DO NOTHING
        RETURNING id INTO v_id;
        IF FOUND THEN
            RETURN v_id;
        END IF;
    END LOOP;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/open_graph_namespace.sql', 0, 'f4c43832f2a9ff2191577164c8d9c830328c9021b5adc2903de1e2869059409f', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/prune_graph_checkpoints.sql
-- Delete the channel values of namespaces that no checkpoint refers to. Values of a checkpoint that is stored later are not
-- among them: a checkpoint and its new values are stored by one function.
CREATE OR REPLACE FUNCTION "public".delete_unused_channels(p_namespaces bigint[]) RETURNS void LANGUAGE sql AS $$
    WITH used AS MATERIALIZED (
        SELECT DISTINCT c.namespace_id, value.channel, value.version
          FROM "public".graph_checkpoints c, unnest(c.channels, c.versions) AS value (channel, version)
         WHERE c.namespace_id = ANY (p_namespaces)
    )
    DELETE FROM "public".graph_channels v
     WHERE v.namespace_id = ANY (p_namespaces)
       AND NOT EXISTS (SELECT FROM used u
                        WHERE u.namespace_id = v.namespace_id AND u.channel = v.channel AND u.version = v.version)
$$;

-- Keep the newest checkpoint of every namespace of threads, and the ancestors from which LangGraph rebuilds its delta
-- channels: back to the nearest one that has a value of each. A subgraph's call (its namespace has a task id behind a
-- colon) is deleted with the checkpoint of the graph that it began at.
CREATE OR REPLACE FUNCTION "public".prune_graph_checkpoints(p_app_name text, p_thread_ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_namespaces bigint[];
    v_kept_namespaces bigint[];
    v_kept_ids text[];
BEGIN
    -- The same rows as a writer locks, in one order; a writer of one of these threads waits for this transaction.
    SELECT array_agg(locked.id) INTO v_namespaces
      FROM (SELECT n.id FROM "public".graph_namespaces n
             WHERE md5(n.thread_id) = ANY (SELECT md5(t) FROM unnest(p_thread_ids) t) AND n.app_name = p_app_name
               AND n.thread_id = ANY (p_thread_ids)
             ORDER BY n.id
               FOR UPDATE) locked;
    WITH RECURSIVE heads AS (
        SELECT DISTINCT ON (c.namespace_id) c.namespace_id, c.checkpoint_id, c.parent_id,
               ARRAY(SELECT jsonb_object_keys(
                         CASE jsonb_typeof(c.metadata -> 'counters_since_delta_snapshot')
                         WHEN 'object' THEN c.metadata -> 'counters_since_delta_snapshot' ELSE '{}' END)) AS wanted,
               c.channels || c.inlined AS stored
          FROM "public".graph_checkpoints c
         WHERE c.namespace_id = ANY (v_namespaces)
         ORDER BY c.namespace_id, c.checkpoint_id DESC
    ), walk AS (
        SELECT h.namespace_id, h.checkpoint_id, h.parent_id,
               ARRAY(SELECT unnest(h.wanted) EXCEPT SELECT unnest(h.stored)) AS wanted
          FROM heads h
        UNION ALL
        SELECT c.namespace_id, c.checkpoint_id, c.parent_id,
               ARRAY(SELECT unnest(w.wanted) EXCEPT SELECT unnest(c.channels || c.inlined))
          FROM walk w
          JOIN "public".graph_checkpoints c ON c.namespace_id = w.namespace_id AND c.checkpoint_id = w.parent_id
         WHERE w.wanted <> '{}'
    )
    SELECT array_agg(namespace_id), array_agg(checkpoint_id) INTO v_kept_namespaces, v_kept_ids FROM walk;
    DELETE FROM "public".graph_namespaces n
     USING unnest(v_kept_namespaces, v_kept_ids) AS kept (namespace_id, checkpoint_id)
      JOIN "public".graph_checkpoints c ON c.namespace_id = kept.namespace_id AND c.checkpoint_id = kept.checkpoint_id
     WHERE n.id = kept.namespace_id AND n.checkpoint_ns LIKE '%:%'
       AND EXISTS (
           SELECT FROM "public".graph_namespaces r
             JOIN "public".graph_checkpoints root ON root.namespace_id = r.id
            WHERE md5(r.thread_id) = md5(n.thread_id) AND r.app_name = n.app_name AND md5(r.checkpoint_ns) = md5('')
              AND r.thread_id = n.thread_id AND r.checkpoint_ns = ''
              AND root.checkpoint_id = c.metadata -> 'parents' ->> ''
              AND (r.id, root.checkpoint_id::text) NOT IN (SELECT * FROM unnest(v_kept_namespaces, v_kept_ids)));
    WITH gone AS (
        DELETE FROM "public".graph_checkpoints c
         WHERE c.namespace_id = ANY (v_namespaces)
           AND (c.namespace_id, c.checkpoint_id::text) NOT IN (SELECT * FROM unnest(v_kept_namespaces, v_kept_ids))
        RETURNING c.namespace_id, c.checkpoint_id
    )
    -- Writes of a checkpoint that is not stored yet stay.
    DELETE FROM "public".graph_writes w USING gone
     WHERE w.namespace_id = gone.namespace_id AND w.checkpoint_id = gone.checkpoint_id;
    UPDATE "public".graph_checkpoints c SET parent_id = NULL
     WHERE c.namespace_id = ANY (v_namespaces) AND c.parent_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM "public".graph_checkpoints p
                        WHERE p.namespace_id = c.namespace_id AND p.checkpoint_id = c.parent_id);
    PERFORM "public".delete_unused_channels(v_namespaces);
END
$$;

-- Delete the checkpoints that runs stored, and their writes. Returns the number of checkpoints.
CREATE OR REPLACE FUNCTION "public".delete_graph_runs(p_app_name text, p_run_ids text[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_namespaces bigint[];
    v_count bigint;
BEGIN
    SELECT array_agg(locked.id) INTO v_namespaces
      FROM (SELECT n.id FROM "public".graph_namespaces n
             WHERE n.id IN (SELECT c.namespace_id FROM "public".graph_checkpoints c
                             WHERE c.app_name = p_app_name AND c.run_id IS NOT NULL
                               AND md5(c.run_id) = ANY (SELECT md5(r) FROM unnest(p_run_ids) r)
                               AND c.run_id = ANY (p_run_ids))
             ORDER BY n.id
               FOR UPDATE) locked;
    WITH gone AS (
        DELETE FROM "public".graph_checkpoints c
         WHERE c.namespace_id = ANY (v_namespaces) AND c.run_id = ANY (p_run_ids)
        RETURNING c.namespace_id, c.checkpoint_id
    ), writes AS (
        DELETE FROM "public".graph_writes w USING gone
         WHERE w.namespace_id = gone.namespace_id AND w.checkpoint_id = gone.checkpoint_id
    )
    SELECT count(*) INTO v_count FROM gone;
    PERFORM "public".delete_unused_channels(v_namespaces);
    RETURN v_count;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/prune_graph_checkpoints.sql', 0, '1ab0e946a5d365b099216007d09baf8452717f00194f09a244e57376a5dc667f', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/put_checkpoint.sql
-- Store a checkpoint and the channel values that are new in it; replace a checkpoint with the same id. With an attempt,
-- the run must be held by it (see check_fence).
CREATE OR REPLACE FUNCTION "public".put_checkpoint(
    p_app_name text, p_thread_id text, p_checkpoint_ns text, p_checkpoint_id text, p_parent_id text, p_run_id text,
    p_type text, p_checkpoint bytea, p_metadata jsonb, p_channels text[], p_versions text[], p_inlined text[],
    p_written_by text, p_new_channels text[], p_new_versions text[], p_new_types text[], p_new_values bytea[],
    p_fence_thread_id uuid, p_fence_run_id text, p_fence_attempt integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_namespace_id bigint;
BEGIN
    PERFORM "public".check_fence(p_fence_thread_id, p_fence_run_id, p_fence_attempt);
    v_namespace_id := "public".open_graph_namespace(p_app_name, p_thread_id, p_checkpoint_ns);
    IF p_new_channels <> '{}' THEN
        INSERT INTO "public".graph_channels (namespace_id, channel, version, app_name, type, value)
        SELECT v_namespace_id, new.channel, new.version, p_app_name, new.type, new.value
          FROM unnest(p_new_channels, p_new_versions, p_new_types, p_new_values) AS new (channel, version, type, value)
         ORDER BY new.channel
        ON CONFLICT (namespace_id, md5(channel), version) DO NOTHING;
    END IF;
    INSERT INTO "public".graph_checkpoints (
        namespace_id, checkpoint_id, parent_id, app_name, run_id, type, checkpoint, metadata, channels, versions,
        inlined, written_by)
    VALUES (v_namespace_id, p_checkpoint_id, p_parent_id, p_app_name, p_run_id, p_type, p_checkpoint, p_metadata,
            p_channels, p_versions, p_inlined, p_written_by)
    ON CONFLICT (namespace_id, checkpoint_id) DO UPDATE
       SET parent_id = excluded.parent_id, run_id = excluded.run_id, type = excluded.type,
           checkpoint = excluded.checkpoint, metadata = excluded.metadata, channels = excluded.channels,
           versions = excluded.versions, inlined = excluded.inlined, written_by = excluded.written_by;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/put_checkpoint.sql', 0, '9fe0b1f29d8a74f0acfa0cee6306913133fe7a1d81be5b488c8861ab8792e6e1', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- graphs/put_graph_writes.sql
-- Store what a task wrote after a checkpoint. Positions below zero are LangGraph's special channels; a later value of them
-- replaces the earlier one if `p_replaces`, otherwise the first value stays. With an attempt, the run must be held by it.
CREATE OR REPLACE FUNCTION "public".put_graph_writes(
    p_app_name text, p_thread_id text, p_checkpoint_ns text, p_checkpoint_id text, p_task_id text, p_task_path text,
    p_positions integer[], p_channels text[], p_types text[], p_values bytea[], p_replaces boolean,
    p_fence_thread_id uuid, p_fence_run_id text, p_fence_attempt integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_namespace_id bigint;
BEGIN
    PERFORM "public".check_fence(p_fence_thread_id, p_fence_run_id, p_fence_attempt);
    v_namespace_id := "public".open_graph_namespace(p_app_name, p_thread_id, p_checkpoint_ns);
    INSERT INTO "public".graph_writes AS w (
        namespace_id, checkpoint_id, task_id, position, task_path, app_name, channel, type, value)
    SELECT DISTINCT ON (new.position) v_namespace_id, p_checkpoint_id, p_task_id, new.position, p_task_path, p_app_name,
           new.channel, new.type, new.value
      FROM unnest(p_positions, p_channels, p_types, p_values) WITH ORDINALITY
           AS new (position, channel, type, value, place)
     ORDER BY new.position, CASE WHEN p_replaces THEN -new.place ELSE new.place END
    ON CONFLICT (namespace_id, checkpoint_id, task_id, position) DO UPDATE
       SET channel = excluded.channel, type = excluded.type, value = excluded.value
     WHERE p_replaces;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('graphs/put_graph_writes.sql', 0, '85fca96a438cf3b114ec35df57adfe80f10ea75bb123ab29f04b2010feb5ad9a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- hosting/begin_hosted_run.sql
-- `start_hosted_run` replaced it; servers of version 0.2.0 and earlier call it.
-- Begins a run of a hosted agent, leased to its worker, and returns it with the state of its thread. The row lock of the
-- thread makes the checks and the creation one step: two servers cannot begin runs on one thread at once. Outcomes:
--   begun      `run` executes; runs of the handler that waited for a person have ended: completed when p_answered names
--              their questions, cancelled when the input withdraws them (p_withdraws)
--   busy       `run` has a valid lease on this thread; nothing changed
--   waiting    `run` of the handler waits for a person, and the input neither answers nor withdraws; nothing changed
--   withdrawn  the run that asked p_answered was cancelled; nothing changed
-- To a client, the answer starts another run: the result of the run that asked names it (`continued_by`), and its first
-- event names the run that asked (`continues`). The client may send the id of the run that asked; p_spare_id replaces an
-- id that is taken then.
-- The same p_event_id again returns the run that it began. SQLSTATE CZ404: no such thread; CZ409: the id is taken.
CREATE OR REPLACE FUNCTION "public".begin_hosted_run(
    p_thread_id uuid, p_run_id text, p_spare_id text, p_handler text, p_input json, p_max_attempts integer,
    p_worker_id text, p_lease interval, p_event_id text, p_answered text[], p_withdraws boolean,
    p_traceparent text DEFAULT NULL
) RETURNS TABLE (
    outcome text, run "public".run_rows, state text, user_state text, app_state text, version bigint,
    last_sequence bigint, user_version bigint, app_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_thread record;
    v_run_id text;
    v_waiting text;
    v_continued text;
    v_is_answered boolean := cardinality(p_answered) > 0;
BEGIN
    PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    outcome := 'begun';
    SELECT e.run_id INTO v_run_id FROM "public".events e
     WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id) AND e.id = p_event_id;
    IF v_run_id IS NULL THEN
        SELECT r.id INTO v_run_id FROM "public".runs r
         WHERE r.thread_id = p_thread_id AND r.status = 'running' AND r.lease_expires_at > clock_timestamp()
         ORDER BY r.created_at, r.id
         LIMIT 1;
        IF FOUND THEN
            outcome := 'busy';
        ELSIF v_is_answered THEN
            SELECT r.id INTO v_run_id FROM "public".runs r
             WHERE r.thread_id = p_thread_id AND r.status = 'cancelled' AND r.wait_kind = 'human'
               AND string_to_array(r.wait_key, ',') && p_answered
             LIMIT 1;
            IF FOUND THEN
                outcome := 'withdrawn';
            END IF;
        ELSIF NOT p_withdraws THEN
            SELECT r.id INTO v_run_id FROM "public".runs r
             WHERE r.thread_id = p_thread_id AND r.status = 'waiting' AND r.handler = p_handler
               AND r.wait_kind = 'human'
             ORDER BY r.created_at, r.id
             LIMIT 1;
            IF FOUND THEN
                outcome := 'waiting';
            END IF;
        END IF;
    END IF;
    IF v_run_id IS NULL THEN
        v_run_id := p_run_id;
        IF v_is_answered AND EXISTS (SELECT FROM "public".runs r WHERE r.thread_id = p_thread_id AND r.id = p_run_id) THEN
            v_run_id := p_spare_id;
        END IF;
        IF v_is_answered OR p_withdraws THEN
            FOR v_waiting IN
                SELECT r.id FROM "public".runs r
                 WHERE r.thread_id = p_thread_id AND r.status = 'waiting' AND r.handler = p_handler
                   AND r.wait_kind = 'human'
                 ORDER BY r.created_at, r.id
            LOOP
                PERFORM "public".end_runs(
                    ARRAY[p_thread_id], ARRAY[v_waiting], ARRAY[NULL]::integer[],
                    ARRAY[CASE WHEN v_is_answered THEN 'completed' ELSE 'cancelled' END],
                    ARRAY[CASE WHEN v_is_answered THEN json_build_object('continued_by', v_run_id)::text END],
                    ARRAY[NULL]::text[], ARRAY[gen_random_uuid()::text], ARRAY[NULL]::text[], true);
                v_continued := CASE WHEN v_is_answered THEN v_waiting END;
            END LOOP;
        END IF;
        PERFORM "public".create_run(
            p_thread_id, v_run_id, 'running', p_handler, p_input, p_max_attempts, NULL, p_worker_id, p_lease, p_event_id,
            json_strip_nulls(json_build_object(
                'run_id', v_run_id, 'status', 'running', 'handler', p_handler, 'continues', v_continued)),
            p_traceparent => p_traceparent);
    END IF;
    SELECT r.* INTO run FROM "public".run_rows r WHERE r.thread_id = p_thread_id AND r.id = v_run_id;
    SELECT t.state::text, u.state::text, a.state::text, t.version, t.last_sequence, coalesce(u.version, 0),
           coalesce(a.version, 0)
      INTO state, user_state, app_state, version, last_sequence, user_version, app_version
      FROM "public".threads t
      LEFT JOIN "public".user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
      LEFT JOIN "public".app_states a ON a.app_name = t.app_name
     WHERE t.id = p_thread_id;
    RETURN NEXT;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('hosting/begin_hosted_run.sql', 0, 'e0899b3d04ffc55c56aae1a7a8aef3aff77cee3bb30da42c27f9fdbbeeea36a1', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- hosting/start_hosted_run.sql
-- Starts a run of a hosted agent in one transaction: creates its thread if there is none, begins the run leased to its worker,
-- and stores the events of its turn (the user's messages, the answers to questions). Returns the run with the state of the
-- thread. The row lock of the thread makes the checks and the writes one step: two servers cannot start runs on one thread
-- at once. Outcomes:
--   begun      `run` executes; runs of the handler that waited for a person have ended: completed when p_answered names
--              their questions, cancelled when the input withdraws them (p_withdraws)
--   busy       `run` executes on this thread, or a server of the handler continues it next: its lease expired, it was
--              handed over, or what it waited for has happened. A run of the handler that waits for something else than a
--              person is busy, too. Nothing changed
--   waiting    `run` of the handler waits for a person, and the input neither answers nor withdraws; nothing changed
--   withdrawn  the run that asked p_answered was cancelled; nothing changed
--   moved      the turn was read from another state of the thread: the thread is not p_thread_id, its head is not
--              p_expected_sequence (null: any), or with p_is_cached it has branches or hidden events. The head of a thread
--              with these is not compared: its last event may belong to another branch. Nothing changed
-- To a client, the answer starts another run: the result of the run that asked names it (`continued_by`), and its first
-- event names the run that asked (`continues`), whose signals the other run has. The client may send the id of the run that
-- asked; p_spare_id replaces an id that is taken then.
-- The same p_event_id again returns the run that it began. SQLSTATE CZ409: the id of the run or of an event is taken.
CREATE OR REPLACE FUNCTION "public".start_hosted_run(
    p_app_name text, p_user_id text, p_session_id text, p_thread_id uuid, p_new_thread_id uuid, p_new_state text,
    p_expected_sequence bigint, p_is_cached boolean,
    p_run_id text, p_spare_id text, p_handler text, p_input json, p_max_attempts integer,
    p_worker_id text, p_lease interval, p_event_id text, p_answered text[], p_withdraws boolean, p_traceparent text,
    p_event_ids text[], p_authors text[], p_event_types text[], p_contents text[], p_roles text[], p_texts text[],
    p_message_ids text[], p_snapshot_every integer, p_max_state_bytes integer
) RETURNS TABLE (
    outcome text, thread_id uuid, run "public".run_rows, begun_sequence bigint, is_branched boolean, state text,
    user_state text, app_state text, version bigint, last_sequence bigint, user_version bigint, app_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_thread_id uuid;
    v_sequence bigint;
    v_run_id text;
    v_waiting text;
    v_continued text;
    v_taken text;
    v_is_answered boolean := cardinality(p_answered) > 0;
    v_items integer := cardinality(p_event_ids);
BEGIN
    SELECT t.id, t.last_sequence INTO v_thread_id, v_sequence FROM "public".threads t
     WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
       AND t.session_id = p_session_id
       FOR NO KEY UPDATE;
    IF NOT FOUND AND p_thread_id IS NULL THEN
        PERFORM "public".create_sessions(
            ARRAY[p_new_thread_id], ARRAY[p_app_name], ARRAY[p_user_id], ARRAY[p_session_id], NULL, NULL,
            ARRAY[p_new_state], NULL, NULL, p_max_state_bytes);
        -- Another transaction may have created it first.
        SELECT t.id, t.last_sequence INTO v_thread_id, v_sequence FROM "public".threads t
         WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
           AND t.session_id = p_session_id
           FOR NO KEY UPDATE;
    END IF;
    thread_id := v_thread_id;
    is_branched := EXISTS (SELECT FROM "public".branch_segments s WHERE s.thread_id = v_thread_id)
                OR EXISTS (SELECT FROM "public".hidden_events h WHERE h.thread_id = v_thread_id);
    IF v_sequence > 0 THEN
        SELECT e.run_id, e.sequence_num INTO v_run_id, begun_sequence FROM "public".events e
         WHERE e.thread_id = v_thread_id AND md5(e.id) = md5(p_event_id) AND e.id = p_event_id;
    END IF;
    outcome := 'begun';
    IF v_run_id IS NULL THEN
        SELECT r.id INTO v_run_id FROM "public".runs r
         WHERE r.thread_id = v_thread_id
           AND (r.status = 'running' AND r.lease_expires_at > clock_timestamp()
                OR r.handler = p_handler AND r.lease_duration IS NOT NULL
                   AND (r.status IN ('running', 'pending') OR r.status = 'waiting' AND r.wait_kind <> 'human'))
         ORDER BY r.created_at, r.id
         LIMIT 1;
        IF FOUND THEN
            outcome := 'busy';
        ELSIF v_thread_id IS NULL OR v_thread_id <> coalesce(p_thread_id, p_new_thread_id)
              OR v_sequence <> p_expected_sequence AND NOT is_branched OR p_is_cached AND is_branched THEN
            outcome := 'moved';
        ELSE
            SELECT r.id INTO v_waiting FROM "public".runs r
             WHERE r.thread_id = v_thread_id AND r.status = 'waiting' AND r.handler = p_handler
               AND r.wait_kind = 'human'
             ORDER BY r.created_at, r.id
             LIMIT 1;
            IF v_waiting IS NOT NULL AND NOT v_is_answered AND NOT p_withdraws THEN
                outcome := 'waiting';
                v_run_id := v_waiting;
            ELSIF v_waiting IS NULL AND v_is_answered THEN
                SELECT r.id INTO v_run_id FROM "public".runs r
                 WHERE r.thread_id = v_thread_id AND r.status = 'cancelled' AND r.wait_kind = 'human'
                   AND string_to_array(r.wait_key, ',') && p_answered
                 LIMIT 1;
                IF FOUND THEN
                    outcome := 'withdrawn';
                END IF;
            END IF;
        END IF;
    END IF;
    IF v_run_id IS NULL AND outcome = 'begun' THEN
        v_run_id := p_run_id;
        IF v_is_answered AND EXISTS (SELECT FROM "public".runs r WHERE r.thread_id = v_thread_id AND r.id = p_run_id) THEN
            v_run_id := p_spare_id;
        END IF;
        IF v_waiting IS NOT NULL THEN
            FOR v_waiting IN
                SELECT r.id FROM "public".runs r
                 WHERE r.thread_id = v_thread_id AND r.status = 'waiting' AND r.handler = p_handler
                   AND r.wait_kind = 'human'
                 ORDER BY r.created_at, r.id
            LOOP
                PERFORM "public".end_runs(
                    ARRAY[v_thread_id], ARRAY[v_waiting], ARRAY[NULL]::integer[],
                    ARRAY[CASE WHEN v_is_answered THEN 'completed' ELSE 'cancelled' END],
                    ARRAY[CASE WHEN v_is_answered THEN json_build_object('continued_by', v_run_id)::text END],
                    ARRAY[NULL]::text[], ARRAY[gen_random_uuid()::text], ARRAY[NULL]::text[], true);
                v_continued := CASE WHEN v_is_answered THEN v_waiting END;
            END LOOP;
        END IF;
        PERFORM "public".create_run(
            v_thread_id, v_run_id, 'running', p_handler, p_input, p_max_attempts, NULL, p_worker_id, p_lease, p_event_id,
            json_strip_nulls(json_build_object(
                'run_id', v_run_id, 'status', 'running', 'handler', p_handler, 'continues', v_continued)),
            p_traceparent => p_traceparent);
        IF v_continued IS NOT NULL THEN
            -- An agent whose code waits is called from its beginning: the waits that have ended return at once.
            INSERT INTO "public".run_signals (
                thread_id, run_id, correlation_key, app_name, source, payload, created_at, used_at, may_answer, signal_id)
            SELECT s.thread_id, v_run_id, s.correlation_key, s.app_name, s.source, s.payload, s.created_at, s.used_at,
                   s.may_answer, s.signal_id
              FROM "public".run_signals s
             WHERE s.thread_id = v_thread_id AND s.run_id = v_continued;
        END IF;
        SELECT t.last_sequence INTO begun_sequence FROM "public".threads t WHERE t.id = v_thread_id;
        IF v_items > 0 THEN
            SELECT p_event_ids[stored.place] INTO v_taken
              FROM "public".append_events(
                       ARRAY[v_thread_id], array_fill(1, ARRAY[v_items]), p_event_ids,
                       array_fill(v_run_id, ARRAY[v_items]), array_fill(v_run_id, ARRAY[v_items]), p_authors,
                       p_event_types, p_contents, array_fill('{}'::text, ARRAY[v_items]), NULL, NULL, NULL, NULL, p_roles,
                       p_texts, p_message_ids, array_fill(true, ARRAY[v_items]), true, p_snapshot_every,
                       p_max_state_bytes)
                   WITH ORDINALITY AS stored (status, sequence_num, version, created_at, place)
             WHERE stored.status <> 'stored'
             LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format(
                    'the thread has an event %s already; give every message an id of its own', v_taken);
            END IF;
        END IF;
    END IF;
    SELECT r.* INTO run FROM "public".run_rows r WHERE r.thread_id = v_thread_id AND r.id = v_run_id;
    SELECT t.state::text, u.state::text, a.state::text, t.version, t.last_sequence, coalesce(u.version, 0),
           coalesce(a.version, 0)
      INTO state, user_state, app_state, version, last_sequence, user_version, app_version
      FROM "public".threads t
      LEFT JOIN "public".user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
      LEFT JOIN "public".app_states a ON a.app_name = t.app_name
     WHERE t.id = v_thread_id;
    RETURN NEXT;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('hosting/start_hosted_run.sql', 0, '35c421cd40d685acbc6cc23b609fbc882d50c06c580b37d01db1c68527c5c0d5', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/append_episode.sql
-- Append an episode and its text for recall, once per id. Returns false if it exists. SQLSTATE CZ404: its session was
-- deleted.
CREATE OR REPLACE FUNCTION "public".append_episode(
    p_app_name text, p_user_id text, p_agent_id text, p_id text, p_session_id text, p_run_id text, p_summary text,
    p_payload jsonb, p_created_at timestamptz, p_text text, p_words text, p_embed boolean, p_sources jsonb DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    IF p_session_id IS NOT NULL AND "public".is_deleted_session(p_app_name, p_user_id, p_session_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('session %s was deleted', left(p_session_id, 200));
    END IF;
    INSERT INTO "public".agent_episodic_chunks (app_name, user_id, agent_id, id, session_id, job_id, summary, payload,
                                                created_at)
    VALUES (p_app_name, p_user_id, p_agent_id, p_id, p_session_id, p_run_id, p_summary, p_payload, p_created_at)
    ON CONFLICT (app_name, user_id, md5(id)) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_text <> '' THEN
        PERFORM "public".store_memories(
            p_app_name, p_user_id, 'episodic', ARRAY[p_agent_id], ARRAY[''], ARRAY[p_id], ARRAY[p_session_id],
            ARRAY[(extract(epoch FROM p_created_at) * 1000000)::bigint], ARRAY[NULL::text], ARRAY[p_text],
            ARRAY[p_words], ARRAY[NULL::text], ARRAY[p_created_at], p_embed,
            ARRAY[jsonb_build_object('sources', coalesce(p_sources, '[]'))::text]);
    END IF;
    RETURN true;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/append_episode.sql', 0, '422b51f99c3a77aec4d4994e3958a2bdfb9647e19d6b9ac129b524f8fb90db46', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/apply_memory_snapshot.sql
-- Restore the state of a thread and the working memory of an agent from a snapshot, in one transaction with one event
-- whose id is that of the snapshot. Keys that p_variables lacks are deleted; messages stay.
-- Status:
--   applied   the state is p_variables, p_content is the content of the event
--   known     the snapshot was applied before; `content` is the content of that event
--   conflict  the state is not at p_expected_version (null: any); `version` is its version. Nothing changed
-- SQLSTATE CZ404: no such thread, or run; CZ423: p_attempt (null: not checked) does not hold the run.
CREATE OR REPLACE FUNCTION "public".apply_memory_snapshot(
    p_thread_id uuid, p_agent_id text, p_event_id text, p_content json, p_variables jsonb, p_working_memory jsonb,
    p_run_id text, p_attempt integer, p_max_state_bytes integer, p_expected_version bigint,
    OUT status text, OUT version bigint, OUT content text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_thread record;
    v_delta jsonb;
BEGIN
    PERFORM "public".check_fence(p_thread_id, p_run_id, p_attempt);
    SELECT * INTO v_thread FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    version := v_thread.version;
    SELECT 'known', e.content::text INTO status, content FROM "public".events e
     WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_event_id);
    IF FOUND THEN
        RETURN;
    END IF;
    IF p_expected_version <> version THEN
        status := 'conflict';
        RETURN;
    END IF;
    SELECT jsonb_object_agg(key, value) INTO v_delta FROM (
        SELECT key, value FROM jsonb_each(p_variables) AS wanted WHERE v_thread.state -> key IS DISTINCT FROM value
        UNION ALL
        SELECT key, '{"$delete": true}'::jsonb FROM jsonb_object_keys(v_thread.state) AS present (key)
         WHERE NOT p_variables ? key
    ) changes;
    SELECT a.version INTO version FROM "public".append_event(
        p_thread_id, p_event_id, p_run_id, '', 'system', 'memory_restored', p_content,
        CASE WHEN v_delta IS NULL THEN '{}'::json ELSE json_build_object('state_delta', v_delta) END,
        v_delta, NULL, NULL, NULL, NULL, NULL, NULL, false, true, 0, p_max_state_bytes) a;
    INSERT INTO "public".agent_states (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
    VALUES (v_thread.app_name, v_thread.user_id, p_agent_id, v_thread.session_id, p_thread_id, p_working_memory,
            clock_timestamp())
    ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
       DO UPDATE SET payload = excluded.payload, thread_id = excluded.thread_id, updated_at = excluded.updated_at;
    status := 'applied';
    content := p_content::text;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/apply_memory_snapshot.sql', 0, '20cd22a8a3064394e1a7b3f66b8657099ccbe9092f41b65e225ea79e1ce9c7b1', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/count_memories.sql
-- Trigger: update the counts in `memory_scopes` after any change of memories.
CREATE OR REPLACE FUNCTION "public".count_memories() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        INSERT INTO "public".memory_scopes AS s (app_name, user_id, memories, total_length)
        SELECT app_name, user_id, count(*), sum(length) FROM added GROUP BY app_name, user_id ORDER BY app_name, user_id
        ON CONFLICT (app_name, user_id) DO UPDATE
           SET memories = s.memories + excluded.memories, total_length = s.total_length + excluded.total_length;
    END IF;
    IF TG_OP IN ('DELETE', 'UPDATE') THEN
        UPDATE "public".memory_scopes s
           SET memories = s.memories - gone.memories, total_length = s.total_length - gone.total_length
          FROM (SELECT app_name, user_id, count(*) AS memories, sum(length) AS total_length
                  FROM removed GROUP BY app_name, user_id) gone
         WHERE s.app_name = gone.app_name AND s.user_id = gone.user_id;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_added_memories AFTER INSERT ON "public".memories
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION "public".count_memories();
CREATE OR REPLACE TRIGGER count_changed_memories AFTER UPDATE ON "public".memories
    REFERENCING NEW TABLE AS added OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION "public".count_memories();
CREATE OR REPLACE TRIGGER count_removed_memories AFTER DELETE ON "public".memories
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION "public".count_memories();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/count_memories.sql', 0, '2d96a1c45c71feea06d5c3b6db5ffdbb75cfcafb9decc8418fc1c5c1b0bc458b', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/delete_episode.sql
-- Delete an episode, also from recall. Returns whether it existed.
CREATE OR REPLACE FUNCTION "public".delete_episode(p_app_name text, p_user_id text, p_id text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_gone record;
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    DELETE FROM "public".agent_episodic_chunks
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(id) = md5(p_id)
    RETURNING agent_id, session_id INTO v_gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM "public".memories
     WHERE app_name = p_app_name AND user_id = p_user_id AND kind = 'episodic' AND agent_id = v_gone.agent_id
       AND md5(coalesce(session_id, '')) = md5(coalesce(v_gone.session_id, '')) AND md5(source_id) = md5(p_id);
    RETURN true;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/delete_episode.sql', 0, '8972881821c6ceb6fa8b8538eda84b408d4e96c41997303507d86e1e18b24060', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/delete_long_term_memory.sql
-- Delete a key and its history, also from recall. Returns whether it existed.
CREATE OR REPLACE FUNCTION "public".delete_long_term_memory(
    p_app_name text, p_user_id text, p_agent_id text, p_namespace text, p_key text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_found boolean;
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    DELETE FROM "public".agent_long_term_memory
     WHERE app_name = p_app_name AND user_id = p_user_id AND agent_id = p_agent_id
       AND md5(namespace) = md5(p_namespace) AND md5(key) = md5(p_key);
    v_found := FOUND;
    DELETE FROM "public".agent_long_term_history
     WHERE app_name = p_app_name AND user_id = p_user_id AND agent_id = p_agent_id
       AND md5(namespace) = md5(p_namespace) AND md5(key) = md5(p_key);
    DELETE FROM "public".memories
     WHERE app_name = p_app_name AND user_id = p_user_id AND kind = 'long_term' AND agent_id = p_agent_id
       AND md5(coalesce(session_id, '')) = md5('') AND md5(source_id) = md5(p_namespace || chr(1) || p_key);
    RETURN v_found;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/delete_long_term_memory.sql', 0, '2416629297f3c315598423bde554d124fe53e21fc3a3529be941f24eac04945c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/expire_memories.sql
-- Delete memories whose `expires_at` has passed, and those of a kind that are older than the days of the rules
-- ({"turn": 90}), at most p_limit of at most 100 users. A fact or episode is deleted with its memory; a message is recorded as
-- forgotten, so that storing its session again does not restore it. The duplicates of a deleted memory stay until they are due
-- themselves. Returns the number of deleted memories.
CREATE OR REPLACE FUNCTION "public".expire_memories(p_rules text, p_limit integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint := 0;
    v_user record;
BEGIN
    -- In the order in which forget_threads takes the locks of users.
    FOR v_user IN
        SELECT due.app_name, due.user_id, array_agg(due.id) AS ids FROM (
            SELECT d.*, dense_rank() OVER (ORDER BY d.app_name, d.user_id) AS number FROM (
                (SELECT m.app_name, m.user_id, m.id FROM "public".memories m WHERE m.expires_at <= now() LIMIT p_limit)
                UNION
                SELECT old.* FROM json_each_text(p_rules::json) AS rule (kind, days),
                       LATERAL (SELECT m.app_name, m.user_id, m.id FROM "public".memories m
                                 WHERE m.kind = rule.kind
                                   AND m.created_at < now() - rule.days::double precision * interval '1 day'
                                 LIMIT p_limit) old
            ) d
             ORDER BY number LIMIT p_limit
        ) due WHERE number <= 100
        GROUP BY app_name, user_id
        ORDER BY hashtextextended('memory ' || app_name || chr(1) || user_id, 0)
    LOOP
        v_count := v_count + cardinality("public".delete_memories(v_user.app_name, v_user.user_id, v_user.ids));
    END LOOP;
    RETURN v_count;
END
$$;

-- Delete values of facts that were replaced before the given time. Returns the number of deleted values.
CREATE OR REPLACE FUNCTION "public".prune_fact_history(p_kept interval, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM "public".agent_long_term_history
         WHERE ctid = ANY (ARRAY(SELECT h.ctid FROM "public".agent_long_term_history h
                                  WHERE h.valid_until < now() - p_kept LIMIT p_limit))
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/expire_memories.sql', 0, '8f5d0257b326176cef374a893dd36070ab32dc88bde566ac4ba8cf29f506978e', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/find_by_frequent_terms.sql
-- Find memories of a user that contain all of these keys, then all but one, and so on, until at least p_enough are found
-- or p_fewest keys are left. Reads at most 5 000 memories per step, however frequent the keys are.
CREATE OR REPLACE FUNCTION "public".find_by_frequent_terms(
    p_app_name text, p_user_id text, p_keys bigint[], p_filter "public".memory_filter, p_enough integer,
    p_fewest integer
) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_number integer := cardinality(p_keys);
    v_condition text;
    v_found bigint[];
    v_all bigint[] := '{}';
BEGIN
    FOR v_size IN REVERSE v_number .. p_fewest LOOP
        SELECT string_agg(format('m.terms @> %L::bigint[]', chosen.keys), ' OR ') INTO v_condition
          FROM (SELECT array_agg(p_keys[place]) AS keys
                  FROM generate_series(1, (1 << v_number) - 1) AS mask, generate_series(1, v_number) AS place
                 WHERE mask & (1 << (place - 1)) <> 0 GROUP BY mask HAVING count(*) = v_size) chosen;
        EXECUTE format(
            'SELECT array_agg(id) FROM (
                 SELECT m.id, m AS whole FROM "public".memories m
                  WHERE (%s) AND m.app_name IS NOT DISTINCT FROM $1 AND m.user_id IS NOT DISTINCT FROM $2
                  LIMIT 5000) found
              WHERE "public".memory_passes(whole, $3)', v_condition)
        INTO v_found USING p_app_name, p_user_id, p_filter;
        v_all := v_all || v_found;
        EXIT WHEN cardinality(v_all) >= p_enough;
    END LOOP;
    RETURN v_all;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/find_by_frequent_terms.sql', 0, 'f18f8a4d820faac1b8383c0d8eae1129e76ad2b51e3969aaf5372f61c2133f0c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/find_frequent_terms.sql
-- Return the keys of a query that an estimated 2 500 or more memories of a user contain, rarest first, with the estimates. Of
-- the other keys those are returned, too, that would make the sum of the estimates of the rarer ones exceed 12 000.
-- The sample is a thousand memories spread over twenty periods, because the subjects of a user change over time.
CREATE OR REPLACE FUNCTION "public".find_frequent_terms(
    p_app_name text, p_user_id text, p_keys bigint[], p_memories double precision,
    OUT keys bigint[], OUT found double precision[]
) LANGUAGE sql STABLE SET enable_indexscan = on SET enable_nestloop = on AS $$
    WITH span AS (
        SELECT min(id) AS first, max(id) AS last FROM "public".memories
         WHERE app_name = p_app_name AND user_id = p_user_id
    ), sample AS MATERIALIZED (
        SELECT part.terms
          FROM span, generate_series(0, 19) AS number,
               LATERAL (SELECT m.terms FROM "public".memories m
                         WHERE m.app_name = p_app_name AND m.user_id = p_user_id
                           AND m.id >= span.first + (span.last - span.first) / 20 * number
                         ORDER BY m.id LIMIT 50) part
    ), counted AS (
        SELECT key, count(*) AS held, (SELECT count(*) FROM sample) AS size
          FROM sample, (SELECT DISTINCT unnest(p_keys)) AS asked (key)
         WHERE sample.terms @> ARRAY[key] GROUP BY key
    ), summed AS (
        SELECT *, sum(held) OVER (ORDER BY held, key) AS sum FROM counted
    )
    SELECT coalesce(array_agg(key ORDER BY held, key), '{}'),
           coalesce(array_agg(p_memories * held / size ORDER BY held, key), '{}')
      FROM summed
     WHERE held >= greatest(4, 2500 * size / p_memories) OR sum > 12000 * size / p_memories
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/find_frequent_terms.sql', 0, 'f9784f512625f4af3320df41ab3bf9f10f738987ef9b9eeae48f1512a4b66e55', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/forget_memory.sql
-- Delete memories of a user, and their facts or episodes. A forgotten message is recorded, so that storing its session again
-- does not restore it. Duplicates of a deleted memory are recalled again. Returns the ids of the deleted memories.
CREATE OR REPLACE FUNCTION "public".delete_memories(p_app_name text, p_user_id text, p_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_gone "public".memories;
    v_deleted bigint[] := '{}';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    FOR v_gone IN
        DELETE FROM "public".memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id
           AND m.id = ANY (p_ids)
        RETURNING m.*
    LOOP
        v_deleted := v_deleted || v_gone.id;
        CASE v_gone.kind
            WHEN 'long_term' THEN
                PERFORM "public".delete_long_term_memory(
                    p_app_name, p_user_id, v_gone.agent_id, v_gone.namespace,
                    substr(v_gone.source_id, length(v_gone.namespace) + 2));
            WHEN 'episodic' THEN
                DELETE FROM "public".agent_episodic_chunks
                 WHERE app_name = p_app_name AND user_id = p_user_id AND md5(id) = md5(v_gone.source_id);
            WHEN 'turn' THEN
                INSERT INTO "public".memory_deletions (app_name, user_id, source)
                VALUES (p_app_name, p_user_id,
                        md5(concat_ws(chr(1), v_gone.agent_id, coalesce(v_gone.session_id, ''), v_gone.source_id)))
                ON CONFLICT DO NOTHING;
            ELSE NULL;
        END CASE;
    END LOOP;
    RETURN v_deleted;
END
$$;

-- Delete a memory, its duplicates, and their facts or episodes. Returns whether the memory existed.
CREATE OR REPLACE FUNCTION "public".forget_memory(p_app_name text, p_user_id text, p_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    RETURN p_id = ANY ("public".delete_memories(p_app_name, p_user_id, ARRAY(
        SELECT p_id UNION ALL
        SELECT d.id FROM "public".memories d
         WHERE d.app_name = p_app_name AND d.user_id = p_user_id AND d.duplicate_of = p_id)));
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/forget_memory.sql', 0, '95cb520705f09ae8a26aac443878722048170bfab15adef8feb4e36978e4cc5c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/forget_threads.sql
-- Return whether a session was deleted and not created again. Writers check it, because data that they read before the
-- deletion must not be stored after it. A session of another service, which the engine never stored, was not deleted.
CREATE OR REPLACE FUNCTION "public".is_deleted_session(p_app_name text, p_user_id text, p_session_id text)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM "public".memory_deletions
                    WHERE app_name = p_app_name
                      AND user_id = ANY (ARRAY[p_user_id, "public".erased_name(p_app_name, p_user_id)])
                      AND source = md5(chr(1) || p_session_id))
           AND NOT EXISTS (SELECT FROM "public".threads
                            WHERE app_name = p_app_name AND user_id = p_user_id
                              AND md5(session_id) = md5(p_session_id) AND session_id = p_session_id)
$$;

-- Delete the rows of deleted threads in tables that refer to them by session id, in the transaction of the deletion.
-- Facts, and the state of the user and the app, do not belong to the session and stay.
CREATE OR REPLACE FUNCTION "public".forget_threads() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    -- The lock of every writer of a user's memories: waits for writers that began before the deletion; later ones see
    -- that the session is deleted. Locks are taken in one order, because a deletion may concern many users.
    PERFORM pg_advisory_xact_lock(lock.key)
       FROM (SELECT DISTINCT hashtextextended('memory ' || app_name || chr(1) || user_id, 0) AS key
               FROM gone ORDER BY 1) lock;
    INSERT INTO "public".memory_deletions (app_name, user_id, source)
    SELECT app_name, user_id, md5(chr(1) || session_id) FROM gone ORDER BY app_name, user_id, session_id
    ON CONFLICT (app_name, user_id, source) DO UPDATE SET deleted_at = excluded.deleted_at;
    DELETE FROM "public".memories m USING gone g
     WHERE m.app_name = g.app_name AND m.user_id = g.user_id AND md5(m.session_id) = md5(g.session_id)
       AND m.session_id = g.session_id;
    DELETE FROM "public".agent_episodic_chunks e USING gone g
     WHERE e.app_name = g.app_name AND e.user_id = g.user_id AND md5(e.session_id) = md5(g.session_id)
       AND e.session_id = g.session_id;
    DELETE FROM "public".agent_states s USING gone g
     WHERE s.app_name = g.app_name AND s.user_id = g.user_id AND md5(s.session_id) = md5(g.session_id)
       AND s.session_id = g.session_id;
    DELETE FROM "public".artifacts a USING gone g
     WHERE a.app_name = g.app_name AND a.user_id = g.user_id AND md5(coalesce(a.session_id, '')) = md5(g.session_id)
       AND a.session_id = g.session_id;
    DELETE FROM "public".message_chunks c USING gone g WHERE c.thread_id = g.id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER forget_threads AFTER DELETE ON "public".threads
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION "public".forget_threads();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/forget_threads.sql', 0, '9ae0de20a28e5bdc8224f87cc9a770efd08a119779513205b521be736e0aff58', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/memory_labels.sql
-- Return the index keys of tags, of the values of metadata and of source events. Each is a hash that contains the user. A list
-- in metadata has one key per value; 1 and 1.0 have the same key.
CREATE OR REPLACE FUNCTION "public".memory_labels(
    p_app_name text, p_user_id text, p_tags text[], p_metadata jsonb, p_sources jsonb
) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(DISTINCT
               ('x' || left(md5(concat_ws(chr(1), p_app_name, p_user_id, label.kind, label.name, label.value)), 16))::bit(64)::bigint), '{}')
      FROM (SELECT 'tag' AS kind, tag AS name, '' AS value FROM unnest(p_tags) AS tag
            UNION ALL
            SELECT 'metadata', entry.key,
                   CASE jsonb_typeof(item.value) WHEN 'number' THEN trim_scale((item.value #>> '{}')::numeric)::text
                                                 ELSE item.value::text END
              FROM jsonb_each(p_metadata) AS entry,
                   jsonb_array_elements(CASE jsonb_typeof(entry.value) WHEN 'array' THEN entry.value
                                                                       ELSE jsonb_build_array(entry.value) END) AS item
            UNION ALL
            SELECT 'event', source.value ->> 'session_id', source.value ->> 'event_id'
              FROM jsonb_array_elements(p_sources) AS source) label
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/memory_labels.sql', 0, 'db463b15af5760bcaa4de4b1e6df4b0b76030ea12f8d753002945d4e9e1691a9', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/memory_neighbours.sql
-- Returns session, author and length of memories, and of those of the three before and after each in its session that pass the
-- filter, with their distance, which is negative for those before. However few memories pass, it reads twelve for each. Without sorts the planner takes the neighbours from idx_memories_session, which has their
-- order. On a table without statistics it expects one row per user and would read and sort all memories of the user instead,
-- for every memory.
CREATE OR REPLACE FUNCTION "public".memory_neighbours(
    p_app_name text, p_user_id text, p_filter "public".memory_filter, p_ids bigint[]
) RETURNS TABLE (
    origin bigint, session_id text, id bigint, distance bigint, author text, length integer, importance real,
    created_at timestamptz
)
LANGUAGE sql STABLE SET enable_sort = off SET enable_bitmapscan = off AS $$
    SELECT m.id, m.session_id, near.id, near.distance, near.author, near.length, near.importance, near.created_at
      FROM unnest(p_ids) AS wanted (id)
      JOIN "public".memories m ON m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = wanted.id
       AND "public".memory_passes(m, p_filter)
     CROSS JOIN LATERAL (
            SELECT m.id, 0 AS distance, m.author, m.length, m.importance, m.created_at
            UNION ALL
            (SELECT x.id, -x.distance, x.author, x.length, x.importance, x.created_at
               FROM (SELECT (y.n).*, row_number() OVER (ORDER BY y.position DESC, y.id DESC) AS distance, y.n AS whole
                       FROM (SELECT n, n.position, n.id FROM "public".memories n
                              WHERE n.app_name = p_app_name AND n.user_id = p_user_id AND md5(n.session_id) = md5(m.session_id)
                                AND n.session_id IS NOT NULL AND m.session_id IS NOT NULL
                                AND (n.position, n.id) < (m.position, m.id)
                              ORDER BY n.position DESC, n.id DESC LIMIT 6) y
                      WHERE (y.n).kind = m.kind) x
              WHERE x.distance <= 3 AND "public".memory_passes(x.whole, p_filter))
            UNION ALL
            (SELECT x.id, x.distance, x.author, x.length, x.importance, x.created_at
               FROM (SELECT (y.n).*, row_number() OVER (ORDER BY y.position, y.id) AS distance, y.n AS whole
                       FROM (SELECT n, n.position, n.id FROM "public".memories n
                              WHERE n.app_name = p_app_name AND n.user_id = p_user_id AND md5(n.session_id) = md5(m.session_id)
                                AND n.session_id IS NOT NULL AND m.session_id IS NOT NULL
                                AND (n.position, n.id) > (m.position, m.id)
                              ORDER BY n.position, n.id LIMIT 6) y
                      WHERE (y.n).kind = m.kind) x
              WHERE x.distance <= 3 AND "public".memory_passes(x.whole, p_filter))) near
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/memory_neighbours.sql', 0, '2c3106ee90a366b2435f3f396ab1f8159780601e2a029ae47b67d57db06b8e43', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/memory_passes.sql
-- Return whether a memory is recalled at all and matches the filters of a recall; a null filter matches everything.
CREATE OR REPLACE FUNCTION "public".memory_passes(m "public".memories, p_filter "public".memory_filter) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT m.duplicate_of IS NULL AND (m.expires_at IS NULL OR m.expires_at > now())
       AND ((p_filter).agent_id IS NULL OR m.agent_id = (p_filter).agent_id)
       AND ((p_filter).kinds IS NULL OR m.kind = ANY ((p_filter).kinds))
       AND ((p_filter).namespace IS NULL OR m.namespace = (p_filter).namespace)
       AND ((p_filter).since IS NULL OR m.created_at >= (p_filter).since)
       AND ((p_filter).until IS NULL OR m.created_at < (p_filter).until)
       AND ((p_filter).tags IS NULL OR m.tags @> (p_filter).tags)
       AND ((p_filter).metadata IS NULL OR m.metadata @> (p_filter).metadata)
       AND ((p_filter).ranges IS NULL OR m.metadata @@ (p_filter).ranges)
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/memory_passes.sql', 0, '7c20bea1eaec6195fd83fb979eb5e6a85d5a2993aa25f9c2a8c9adb4f5dba2d9', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/memory_term_keys.sql
-- Return the index keys of words: stemmed, without stop words, with repetitions. A key is a hash of the user and the word.
-- md5, not hashtext: a dump must be valid on another machine or a newer server.
CREATE OR REPLACE FUNCTION "public".memory_term_keys(p_app_name text, p_user_id text, p_words text) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(('x' || left(md5(p_app_name || chr(1) || p_user_id || chr(1) || stem), 16))::bit(64)::bigint
                              ORDER BY place), '{}')
      FROM string_to_table(p_words, ' ') WITH ORDINALITY AS words (word, place),
           unnest(ts_lexize('pg_catalog.english_stem', word)) AS stem
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/memory_term_keys.sql', 0, 'a2f91c4d7831659a6c7a6158dde98eaebcd70fc09475f4d8b42d73c1fed37949', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/merge_memories.sql
-- Mark memories as duplicates of others, unless one of the two has changed since it was read. Recall returns the kept one; the
-- duplicate keeps its row, and so its sources. Returns the number of memories marked.
CREATE OR REPLACE FUNCTION "public".merge_memories(
    p_app_name text, p_user_id text, p_ids bigint[], p_revisions bigint[], p_kept bigint[], p_kept_revisions bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_merged bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    WITH pairs AS (
        SELECT g.id, g.kept, d.importance
          FROM unnest(p_ids, p_revisions, p_kept, p_kept_revisions) AS g (id, revision, kept, kept_revision)
          JOIN "public".memories d ON d.app_name = p_app_name AND d.user_id = p_user_id AND d.id = g.id
           AND d.revision = g.revision AND d.duplicate_of IS NULL
          JOIN "public".memories k ON k.app_name = p_app_name AND k.user_id = p_user_id AND k.id = g.kept
           AND k.revision = g.kept_revision AND k.duplicate_of IS NULL
    ), marked AS (
        UPDATE "public".memories m SET duplicate_of = pairs.kept
          FROM pairs
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND (m.id = pairs.id OR m.duplicate_of = pairs.id)
        RETURNING m.id
    )
    SELECT coalesce(array_agg(id), '{}') INTO v_merged FROM marked;
    UPDATE "public".memories k SET importance = greatest(k.importance, best.importance)
      FROM (SELECT m.duplicate_of AS id, max(m.importance) AS importance FROM "public".memories m
             WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_merged)
             GROUP BY m.duplicate_of) best
     WHERE k.app_name = p_app_name AND k.user_id = p_user_id AND k.id = best.id AND best.importance IS NOT NULL;
    -- A search by meaning would otherwise find the duplicates in place of other memories.
    DELETE FROM "public".memory_vectors v
     WHERE v.app_name = p_app_name AND v.user_id = p_user_id AND v.memory_id = ANY (v_merged);
    DELETE FROM "public".memory_embedding_queue q
     WHERE q.app_name = p_app_name AND q.user_id = p_user_id AND q.memory_id = ANY (v_merged);
    RETURN cardinality(v_merged);
END
$$;

-- Trigger: queue a memory that is no longer a duplicate for its vector. Without an embedder it waits in the queue.
CREATE OR REPLACE FUNCTION "public".restore_duplicate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO "public".memory_embedding_queue (app_name, user_id, memory_id)
    VALUES (NEW.app_name, NEW.user_id, NEW.id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER restore_duplicate AFTER UPDATE OF duplicate_of ON "public".memories
    FOR EACH ROW WHEN (OLD.duplicate_of IS NOT NULL AND NEW.duplicate_of IS NULL)
    EXECUTE FUNCTION "public".restore_duplicate();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/merge_memories.sql', 0, 'afb43b740bcab703a59381b9ace0f72f6252b3468cd5e95e33e4a54a8941b9ab', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/note_run_end.sql
-- Trigger: queue an ended run for its episode, in the transaction that ends it. A consolidation has no episode of its own.
CREATE OR REPLACE FUNCTION "public".note_run_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO "public".agent_episodes_due (thread_id, run_id, app_name)
    VALUES (NEW.thread_id, NEW.id, NEW.app_name)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER note_run_end AFTER UPDATE OF status ON "public".runs
    FOR EACH ROW WHEN (NEW.status IN ('completed', 'failed') AND OLD.status IS DISTINCT FROM NEW.status
                       AND NEW.handler IS DISTINCT FROM 'cognizes.consolidate')
    EXECUTE FUNCTION "public".note_run_end();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/note_run_end.sql', 0, '1dd5cec79fa202f470068bccda11405891500468fd1ed8439f27f74c8b815de2', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/recall_by_vector.sql
-- Find the memories of a user nearest to a vector, with their cosine: by an exact scan for a user with few memories or
-- with p_exact, of the memories p_selected if they are given, else by the HNSW index. Returns also the cosines of the
-- memories p_ids, some of them twice.
CREATE OR REPLACE FUNCTION "public".recall_by_vector(
    p_app_name text, p_user_id text, p_model text, p_dimension integer, p_query text, p_filter "public".memory_filter,
    p_limit integer, p_exact boolean, p_selected bigint[], p_ids bigint[]
) RETURNS TABLE (id bigint, cosine double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'relaxed_order' SET hnsw.ef_search = 200 SET hnsw.max_scan_tuples = 200000 AS $$
DECLARE
    v_has_graph boolean;
    v_filter text := '';
    -- Few: they are deleted soon. A duplicate has no vector.
    v_expired bigint[] := ARRAY(SELECT m.id FROM "public".memories m
                                 WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.expires_at <= now()
                                 LIMIT 10000);
BEGIN
    SELECT s.graph_is_ready AND s.graph_model = p_model AND NOT p_exact INTO v_has_graph
      FROM "public".memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF p_selected IS NOT NULL THEN
        v_has_graph := false;
        v_filter := 'AND memory_id = ANY ($7)';
    ELSIF NOT (p_filter IS NULL) THEN
        v_filter := 'AND EXISTS (SELECT FROM "public".memories m
                                  WHERE m.app_name = v.app_name AND m.user_id = v.user_id AND m.id = v.memory_id
                                    AND "public".memory_passes(m, $4))';
    ELSIF v_expired <> '{}' THEN
        v_filter := 'AND memory_id <> ALL ($8)';
    END IF;
    IF v_has_graph THEN
        -- The planner underestimates the cost of sorting the rows of a btree scan.
        PERFORM set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true);
        RETURN QUERY EXECUTE format(
            '(SELECT memory_id, 1 - (embedding::halfvec(%s) <=> $3::halfvec(%s)) FROM "public".memory_vectors v
              WHERE in_graph AND model = %L AND app_name IS NOT DISTINCT FROM $1 AND user_id IS NOT DISTINCT FROM $2 %s
              ORDER BY embedding::halfvec(%s) <=> $3::halfvec(%s) LIMIT $5)
             UNION ALL
             SELECT memory_id, 1 - (embedding <=> $3::halfvec) FROM "public".memory_vectors v
              WHERE app_name = $1 AND user_id = $2 AND memory_id = ANY ($6) AND model = %L',
            p_dimension, p_dimension, p_model, v_filter, p_dimension, p_dimension, p_model)
        USING p_app_name, p_user_id, p_query, p_filter, p_limit, p_ids, p_selected, v_expired;
        PERFORM set_config('enable_sort', 'on', true), set_config('enable_bitmapscan', 'on', true);
    ELSE
        RETURN QUERY EXECUTE format(
            'WITH compared AS MATERIALIZED (
                 SELECT memory_id, embedding <=> $3::halfvec AS distance FROM "public".memory_vectors v
                  WHERE app_name = $1 AND user_id = $2 AND model = %L %s)
             (SELECT memory_id, 1 - distance FROM compared ORDER BY distance LIMIT $5)
             UNION ALL
             SELECT memory_id, 1 - distance FROM compared WHERE memory_id = ANY ($6)', p_model, v_filter)
        USING p_app_name, p_user_id, p_query, p_filter, p_limit, p_ids, p_selected, v_expired;
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/recall_by_vector.sql', 0, '3afcb40bf2a0275a8c620a81bab04a145797f55425f7eaaa446e3038f01d45ac', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/recall_by_words.sql
-- Find the best memories of a user by BM25 (k1 0.9, b 0.4). Word frequencies are those of all memories of the user; the
-- filters apply afterwards. `share` is BM25 divided by its maximum for the query, so it is between 0 and 1 and a word that
-- no memory contains lowers it. `rarity` is 1 for a memory with all words of the query of which one is in no other memory;
-- it falls quickly with the frequency of the word and is multiplied by the weight of the words that the memory contains. It is
-- up to 10 for an identifier, whatever the other words are. `matched` are the places of these words in the query. The first row holds the weight of each
-- word of the query, 1 for a word that only one memory contains, null for a stop word or a word that none contains.
-- For a user with more than 20 000 memories, unless p_exact, frequent words are not searched exhaustively. Their frequency
-- and weight are estimated from a thousand memories. All memories with a rare word are candidates; of the others those
-- that contain all frequent words of the query, or all but one, and so on, until there are enough. A single frequent word
-- is searched only if rare words find too few, because it weighs less than any of them. So the number of candidates is bounded,
-- however many words the query has. The plans are generic: they have one form, and planning them for each query would take as
-- long as searching a thousand memories.
-- SECURITY DEFINER: row level security disables the GIN index, because `&&` is not leakproof. It returns ids and scores;
-- the calling query checks the user, and reads the memories under row level security.
CREATE OR REPLACE FUNCTION "public".recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_filter "public".memory_filter,
    p_limit integer, p_exact boolean, p_selected bigint[]
) RETURNS TABLE (
    id bigint, bm25 double precision, share double precision, rarity double precision, matched integer[],
    weights double precision[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = off SET work_mem = '16MB'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_word_keys bigint[];
    v_times bigint[];
    v_keys bigint[];
    v_identifiers bigint[] := "public".memory_term_keys(p_app_name, p_user_id, p_identifiers);
    v_filters boolean := NOT (p_filter IS NULL);
    v_memories double precision;
    v_length double precision;
    v_base double precision := 0.9 * 0.6;
    v_slope double precision;
    v_frequent bigint[] := '{}';
    v_found double precision[] := '{}';
    v_rare bigint[];
    v_others bigint[] := '{}';
    v_enough integer := 2 * p_limit;
    v_brought bigint;
BEGIN
    SELECT s.memories, greatest(s.total_length::double precision / nullif(s.memories, 0), 1) INTO v_memories, v_length
      FROM "public".memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF v_memories IS NULL OR v_memories < 1 THEN
        RETURN;
    END IF;
    v_slope := 0.9 * 0.4 / v_length;
    SELECT array_agg(key ORDER BY place), array_agg(times ORDER BY place) INTO v_word_keys, v_times
      FROM (SELECT min(place) AS place, count(*) AS times,
                   ("public".memory_term_keys(p_app_name, p_user_id, word))[1] AS key
              FROM string_to_table(p_words, ' ') WITH ORDINALITY AS words (word, place)
             GROUP BY word ORDER BY 1 LIMIT 256) distinct_words;
    -- The first 64 words that are not stop words: the time of a GIN scan grows with the square of its keys, and it cannot be
    -- cancelled; each candidate is compared with each key.
    v_keys := ARRAY(SELECT key FROM unnest(v_word_keys) WITH ORDINALITY AS given (key, place)
                     WHERE key IS NOT NULL GROUP BY key ORDER BY min(place) LIMIT 64);
    v_rare := v_keys;
    IF v_memories > 20000 AND NOT p_exact THEN
        SELECT f.keys, f.found INTO v_frequent, v_found
          FROM "public".find_frequent_terms(p_app_name, p_user_id, v_keys, v_memories) f;
        v_rare := ARRAY(SELECT key FROM unnest(v_keys) AS key WHERE key <> ALL (v_frequent));
        IF p_selected IS NOT NULL THEN
            v_others := ARRAY(SELECT m.id FROM "public".memories m
                               WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (p_selected)
                                 AND m.terms && v_frequent);
        ELSIF v_frequent <> '{}' THEN
            SELECT count(*) INTO v_brought FROM (
                SELECT FROM "public".memories m
                 WHERE m.terms && v_rare AND "public".memory_passes(m, p_filter) LIMIT v_enough) counted;
            v_others := "public".find_by_frequent_terms(
                p_app_name, p_user_id, v_frequent[:6], p_filter, v_enough, CASE WHEN v_brought < v_enough THEN 1 ELSE 2 END);
        END IF;
    END IF;
    RETURN QUERY
    WITH wanted AS (
        SELECT key, sum(times)::double precision AS times, min(place)::integer AS place, key = ANY (v_identifiers) AS is_identifier,
               v_found[array_position(v_frequent, key)] AS estimate
          FROM unnest(v_word_keys, v_times) WITH ORDINALITY AS given (key, times, place)
         WHERE key = ANY (v_keys) GROUP BY key
    ), matching AS MATERIALIZED (
        -- The key already contains the user. This condition separates users even after a hash collision, in a form that
        -- the planner cannot use to scan all memories of a user instead.
        SELECT m.id, m.length, m.terms,
               CASE WHEN p_selected IS NOT NULL THEN m.id IN (SELECT unnest(p_selected))
                    WHEN v_filters THEN "public".memory_passes(m, p_filter)
                    ELSE m.duplicate_of IS NULL AND (m.expires_at IS NULL OR m.expires_at > now()) END AS passes
          FROM "public".memories m
         WHERE m.terms && v_rare
           AND m.app_name IS NOT DISTINCT FROM p_app_name AND m.user_id IS NOT DISTINCT FROM p_user_id
        UNION ALL
        SELECT m.id, m.length, m.terms, true
          FROM "public".memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_others) AND NOT m.terms && v_rare
    ), hits AS MATERIALIZED (
        -- Few keys: compare each memory with each key. Many keys: look each word of a memory up, which costs the same for all.
        SELECT wanted.key, matching.id, matching.length, matching.passes,
               cardinality(array_positions(matching.terms, wanted.key)) AS frequency
          FROM matching, wanted
         WHERE cardinality(v_keys) <= 4 AND matching.terms @> ARRAY[wanted.key]
        UNION ALL
        SELECT term.key, term.id, term.length, term.passes, count(*)::integer
          FROM (SELECT unnest(terms) AS key, id, length, passes FROM matching WHERE cardinality(v_keys) > 4) term
          JOIN wanted USING (key)
         GROUP BY term.key, term.id, term.length, term.passes
    ), counted AS (
        SELECT hits.key, count(*) AS memories FROM hits GROUP BY hits.key
    ), words AS MATERIALIZED (
        SELECT wanted.*, found > 0 AS is_known, weight, times * weight * 1.9 AS most,
               power(least(weight / ln(1 + (v_memories - 0.5) / 1.5), 1), 8) AS rareness
          FROM wanted
          LEFT JOIN counted USING (key)
         CROSS JOIN LATERAL (SELECT coalesce(wanted.estimate, counted.memories, 0) AS found) known
         CROSS JOIN LATERAL (SELECT ln(1 + (v_memories - least(v_memories, found) + 0.5) / (found + 0.5)) AS weight) weighed
    ), best AS MATERIALIZED (
        SELECT hits.id, sum(most * frequency / (frequency + v_base + v_slope * length)) AS bm25
          FROM hits JOIN words USING (key)
         WHERE passes
         GROUP BY hits.id ORDER BY 2 DESC, 1 DESC LIMIT p_limit
    ), described AS (
        SELECT id, bm25, array_agg(place) AS matched,
               greatest(max(rareness) * sum(weight) / (SELECT sum(weight) FROM words),
                        10 * coalesce(max(rareness) FILTER (WHERE is_identifier), 0)) AS rarity
          FROM best JOIN hits USING (id) JOIN words USING (key)
         GROUP BY id, bm25
    )
    SELECT d.id, d.bm25, d.bm25 / (SELECT sum(most) FROM words), d.rarity, d.matched,
           CASE WHEN row_number() OVER (ORDER BY d.bm25 DESC, d.id DESC) = 1 THEN
               ARRAY(SELECT CASE WHEN is_known THEN weight / ln(1 + (v_memories + 0.5) / 0.5) END
                       FROM unnest(v_word_keys) WITH ORDINALITY AS given (key, nth) LEFT JOIN words USING (key)
                      ORDER BY nth) END
      FROM described d ORDER BY d.bm25 DESC, d.id DESC;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/recall_by_words.sql', 0, '1e9825754bf50502baaa98a22d5ada34a92d41b41f948e36b57d4da39b6706bb', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/recall_of_older_versions.sql
-- Recall with the arguments of engines before the filters by tags and metadata: nodes of the older version call these
-- during an upgrade. They can be removed one version later.
CREATE OR REPLACE FUNCTION "public".recall_by_words(
    p_app_name text, p_user_id text, p_words text, p_identifiers text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer, p_exact boolean
) RETURNS TABLE (
    id bigint, bm25 double precision, share double precision, rarity double precision, matched integer[],
    weights double precision[]
) LANGUAGE sql STABLE AS $$
    SELECT * FROM "public".recall_by_words(
        p_app_name, p_user_id, p_words, p_identifiers,
        "public".older_memory_filter(p_agent_id, p_kinds, p_namespace, p_since, p_until), p_limit, p_exact, NULL)
$$;

CREATE OR REPLACE FUNCTION "public".recall_by_vector(
    p_app_name text, p_user_id text, p_model text, p_dimension integer, p_query text, p_agent_id text, p_kinds text[],
    p_namespace text, p_since timestamptz, p_until timestamptz, p_limit integer, p_exact boolean, p_ids bigint[]
) RETURNS TABLE (id bigint, cosine double precision) LANGUAGE sql STABLE AS $$
    SELECT * FROM "public".recall_by_vector(
        p_app_name, p_user_id, p_model, p_dimension, p_query,
        "public".older_memory_filter(p_agent_id, p_kinds, p_namespace, p_since, p_until), p_limit, p_exact, NULL, p_ids)
$$;

CREATE OR REPLACE FUNCTION "public".memory_neighbours(
    p_app_name text, p_user_id text, p_agent_id text, p_kinds text[], p_namespace text, p_since timestamptz,
    p_until timestamptz, p_ids bigint[]
) RETURNS TABLE (origin bigint, session_id text, id bigint, distance bigint, author text, length integer)
LANGUAGE sql STABLE AS $$
    SELECT origin, session_id, id, distance, author, length
      FROM "public".memory_neighbours(
               p_app_name, p_user_id,
               "public".older_memory_filter(p_agent_id, p_kinds, p_namespace, p_since, p_until), p_ids)
$$;

CREATE OR REPLACE FUNCTION "public".older_memory_filter(
    p_agent_id text, p_kinds text[], p_namespace text, p_since timestamptz, p_until timestamptz
) RETURNS "public".memory_filter LANGUAGE sql STABLE AS $$
    SELECT jsonb_populate_record(
        NULL::"public".memory_filter,
        jsonb_build_object('agent_id', p_agent_id, 'kinds', p_kinds, 'namespace', p_namespace, 'since', p_since,
                           'until', p_until))
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/recall_of_older_versions.sql', 0, '2fb58468cfd0f9adaaa2ce2582fbf680d75a831d64c600809dafb57aca66261b', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/select_memories.sql
-- Return the ids of the memories of a user that match a filter if at most p_limit match; null means that the filter is better
-- applied to the rows that a search finds: it is not selective, or cheap and the user has few memories. The first condition that is present chooses the
-- index: labels, a range of metadata, the namespace, kind and time.
-- SECURITY DEFINER: row level security disables the indexes, because `@>` and comparisons of numbers are not leakproof. It
-- returns ids; the calling query checks the user, and reads the memories under row level security.
CREATE OR REPLACE FUNCTION "public".select_memories(
    p_app_name text, p_user_id text, p_filter "public".memory_filter, p_limit integer
) RETURNS bigint[] LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_labels bigint[] := "public".memory_labels(p_app_name, p_user_id, (p_filter).tags, (p_filter).metadata, NULL);
    v_from text := '"public".memories m WHERE m.app_name = $1 AND m.user_id = $2';
    v_column text;
    v_ids bigint[];
    v_memories bigint;
    v_sampled bigint;
    v_passing bigint;
BEGIN
    SELECT s.memories INTO v_memories FROM "public".memory_scopes s WHERE s.app_name = p_app_name AND s.user_id = p_user_id;
    IF v_labels <> '{}' THEN
        -- In a form that the planner cannot use to scan all memories of the user instead.
        v_from := '"public".memories m WHERE m.labels @> $5 AND m.labels <> ''{}''
                   AND m.app_name IS NOT DISTINCT FROM $1 AND m.user_id IS NOT DISTINCT FROM $2';
    ELSIF (p_filter).range_name IS NOT NULL THEN
        v_column := CASE WHEN (p_filter).range_numbers IS NULL THEN 'text' ELSE 'number' END;
        v_from := format('(SELECT DISTINCT r.memory_id FROM "public".memory_metadata r
                            WHERE r.name = ($3).range_name AND r.app_name = $1 AND r.user_id = $2 AND r.%1$I IS NOT NULL
                              AND (($3).range_%1$ss[1] IS NULL OR r.%1$I >= ($3).range_%1$ss[1])
                              AND (($3).range_%1$ss[2] IS NULL OR r.%1$I <= ($3).range_%1$ss[2])) chosen
                          JOIN "public".memories m ON m.app_name = $1 AND m.user_id = $2 AND m.id = chosen.memory_id
                         WHERE true', v_column);
    ELSIF v_memories IS NULL OR v_memories <= 20000 THEN
        RETURN NULL;
    ELSIF (p_filter).namespace <> '' THEN
        v_from := v_from || ' AND m.namespace <> '''' AND md5(m.namespace) = md5(($3).namespace)';
    ELSIF coalesce((p_filter).kinds::text, (p_filter).since::text, (p_filter).until::text) IS NOT NULL THEN
        v_from := v_from || ' AND m.kind = ANY (coalesce(($3).kinds, ''{long_term,episodic,turn,note}''))
                              AND m.created_at >= coalesce(($3).since, ''-infinity'')
                              AND m.created_at < coalesce(($3).until, ''infinity'')';
    ELSE
        RETURN NULL;
    END IF;
    IF v_memories > 20000 THEN
        -- A hundred memories of twenty periods show a filter that clearly passes too many, without reading them.
        SELECT count(*), count(*) FILTER (WHERE "public".memory_passes(part.whole, p_filter)) INTO v_sampled, v_passing
          FROM (SELECT min(m.id) AS first, max(m.id) AS last FROM "public".memories m
                 WHERE m.app_name = p_app_name AND m.user_id = p_user_id) span,
               generate_series(0, 19) AS number,
               LATERAL (SELECT m AS whole FROM "public".memories m
                         WHERE m.app_name = p_app_name AND m.user_id = p_user_id
                           AND m.id >= span.first + (span.last - span.first) / 20 * number
                         ORDER BY m.id LIMIT 5) part;
        IF v_passing >= 10 AND v_memories * v_passing > 2 * p_limit * v_sampled THEN
            RETURN NULL;
        END IF;
    END IF;
    EXECUTE format('SELECT coalesce(array_agg(id), ''{}'') FROM (
                        SELECT m.id FROM %s AND "public".memory_passes(m, $3) LIMIT $4 + 1) chosen', v_from)
       INTO v_ids USING p_app_name, p_user_id, p_filter, p_limit, v_labels;
    RETURN CASE WHEN cardinality(v_ids) <= p_limit THEN v_ids END;
END
$$;

-- Return the ids of the memories that came from an event: the message itself, and facts and episodes.
-- SECURITY DEFINER: as above.
CREATE OR REPLACE FUNCTION "public".memories_of_event(
    p_app_name text, p_user_id text, p_session_id text, p_event_id text
) RETURNS bigint[] LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT ARRAY(
        SELECT t.id FROM "public".memories t
         WHERE t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(p_session_id)
           AND t.session_id = p_session_id AND t.kind = 'turn' AND t.source_id = p_event_id
        UNION
        SELECT d.id FROM "public".memories d
         WHERE d.labels @> "public".memory_labels(
                   p_app_name, p_user_id, NULL, NULL,
                   jsonb_build_array(jsonb_build_object('session_id', p_session_id, 'event_id', p_event_id)))
           AND d.labels <> '{}' AND d.app_name IS NOT DISTINCT FROM p_app_name AND d.user_id IS NOT DISTINCT FROM p_user_id
           AND d.sources @> jsonb_build_array(jsonb_build_object('session_id', p_session_id, 'event_id', p_event_id)))
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/select_memories.sql', 0, '39320875147ae5e3ede4ecdff13b6d1057ac3d84ea110342792fdf3e3025531a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/set_long_term_memory.sql
-- Set a key of an agent's long-term memory, and its text for recall. An empty text excludes it from recall. The newer value of
-- a key replaces the older one by the times of the values (p_at, by default now), whatever the order of the calls. A value is
-- valid from `valid_from`; `updated_at` is its last confirmation. With p_keep_history the replaced value goes to
-- `agent_long_term_history`. Returns the fact that is current afterwards.
CREATE OR REPLACE FUNCTION "public".set_long_term_memory(
    p_app_name text, p_user_id text, p_agent_id text, p_namespace text, p_key text, p_value jsonb, p_text text,
    p_words text, p_embed boolean, p_at timestamptz DEFAULT NULL, p_sources jsonb DEFAULT NULL,
    p_keep_history boolean DEFAULT true
) RETURNS SETOF "public".agent_long_term_memory LANGUAGE plpgsql AS $$
DECLARE
    v_old "public".agent_long_term_memory;
    v_at timestamptz := coalesce(p_at, clock_timestamp());
    v_is_equal boolean;
    v_next timestamptz;
BEGIN
    -- Every function that writes a user's memories takes this lock first, so they cannot deadlock.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    SELECT * INTO v_old FROM "public".agent_long_term_memory l
     WHERE l.app_name = p_app_name AND l.user_id = p_user_id AND l.agent_id = p_agent_id
       AND md5(l.namespace) = md5(p_namespace) AND md5(l.key) = md5(p_key);
    v_old.valid_from := coalesce(v_old.valid_from, v_old.updated_at);
    v_is_equal := v_old.value IS NOT DISTINCT FROM p_value;
    IF v_old.updated_at > p_at THEN
        IF v_is_equal AND p_at >= v_old.valid_from OR NOT p_keep_history THEN
            RETURN NEXT v_old;
            RETURN;
        END IF;
        SELECT min(h.valid_from) INTO v_next FROM "public".agent_long_term_history h
         WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
           AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key) AND h.valid_from > p_at;
        UPDATE "public".agent_long_term_history h SET valid_until = p_at
         WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
           AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key)
           AND h.valid_from < p_at AND h.valid_until > p_at AND h.value <> p_value;
        IF v_is_equal AND v_next IS NULL THEN
            -- The current value was valid earlier than known.
            v_old.valid_from := p_at;
        ELSE
            IF p_at > v_old.valid_from THEN
                -- Another value between two statements of the current one.
                INSERT INTO "public".agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                              valid_from, valid_until)
                VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, v_old.value, v_old.text, v_old.sources,
                        v_old.valid_from, p_at);
            END IF;
            IF p_at >= v_old.valid_from THEN
                v_old.valid_from := v_old.updated_at;
            END IF;
            INSERT INTO "public".agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                          valid_from, valid_until)
            SELECT p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text, p_sources, p_at,
                   coalesce(v_next, v_old.valid_from)
             WHERE NOT EXISTS (
                   SELECT FROM "public".agent_long_term_history h
                    WHERE h.app_name = p_app_name AND h.user_id = p_user_id AND h.agent_id = p_agent_id
                      AND md5(h.namespace) = md5(p_namespace) AND md5(h.key) = md5(p_key)
                      AND h.valid_from <= p_at AND h.valid_until > p_at AND h.value = p_value);
        END IF;
        UPDATE "public".agent_long_term_memory l SET valid_from = v_old.valid_from
         WHERE l.app_name = p_app_name AND l.user_id = p_user_id AND l.agent_id = p_agent_id
           AND md5(l.namespace) = md5(p_namespace) AND md5(l.key) = md5(p_key);
        RETURN NEXT v_old;
        RETURN;
    END IF;
    -- A value from a time in the future that is replaced before was never valid.
    IF p_keep_history AND NOT v_is_equal AND v_old.valid_from < v_at THEN
        INSERT INTO "public".agent_long_term_history (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                      valid_from, valid_until)
        VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, v_old.value, v_old.text, v_old.sources,
                v_old.valid_from, v_at);
    END IF;
    INSERT INTO "public".agent_long_term_memory AS l (app_name, user_id, agent_id, namespace, key, value, text, sources,
                                                      created_at, updated_at, valid_from)
    VALUES (p_app_name, p_user_id, p_agent_id, p_namespace, p_key, p_value, p_text, p_sources, v_at, v_at, v_at)
    ON CONFLICT (app_name, user_id, agent_id, md5(namespace), md5(key))
       DO UPDATE SET value = excluded.value, text = excluded.text, updated_at = excluded.updated_at,
                     valid_from = CASE WHEN v_is_equal THEN least(v_old.valid_from, v_at) ELSE v_at END,
                     sources = CASE WHEN v_is_equal AND l.sources IS NOT NULL THEN (
                                        SELECT jsonb_agg(source ORDER BY place) FROM (
                                            SELECT source, min(place) AS place
                                              FROM jsonb_array_elements(l.sources || coalesce(excluded.sources, '[]'))
                                                   WITH ORDINALITY AS given (source, place)
                                             GROUP BY source) united)
                                    ELSE excluded.sources END
    RETURNING * INTO v_old;
    IF p_text = '' THEN
        DELETE FROM "public".memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.kind = 'long_term' AND m.agent_id = p_agent_id
           AND md5(coalesce(m.session_id, '')) = md5('') AND md5(m.source_id) = md5(p_namespace || chr(1) || p_key);
    ELSE
        PERFORM "public".store_memories(
            p_app_name, p_user_id, 'long_term', ARRAY[p_agent_id], ARRAY[p_namespace],
            ARRAY[p_namespace || chr(1) || p_key], ARRAY[NULL::text], ARRAY[0::bigint], ARRAY[NULL::text],
            ARRAY[p_text], ARRAY[p_words], ARRAY[NULL::text], ARRAY[v_old.updated_at], p_embed,
            ARRAY[jsonb_build_object('sources', coalesce(v_old.sources, '[]'))::text]);
    END IF;
    RETURN NEXT v_old;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/set_long_term_memory.sql', 0, 'e599cfb265de17784851541b8383143ea9d1bcbf865324fabba3706d35109063', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/store_memories.sql
-- Store new and changed memories of one user, and queue those with another text for embedding. An equal memory is not
-- changed. An item without details keeps those that are stored. Forgotten messages are not stored again, nor are memories of a deleted session; of a session that was deleted
-- and created again, only messages that it contains. Returns the number of new or changed memories.
CREATE OR REPLACE FUNCTION "public".store_memories(
    p_app_name text, p_user_id text, p_kind text, p_agent_ids text[], p_namespaces text[], p_source_ids text[],
    p_session_ids text[], p_positions bigint[], p_authors text[], p_texts text[], p_words text[], p_contents text[],
    p_created_at timestamptz[], p_embed boolean, p_details text[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql
-- The plan is cached, possibly while the tables are empty, and must suit large tables.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_stored bigint[];
BEGIN
    -- One writer of a user's memories at a time: two that store the same ones in another order would deadlock, and
    -- they share the row of the user's counts.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    WITH given AS (
        SELECT DISTINCT ON (agent_id, coalesce(session_id, ''), source_id) g.*
          FROM unnest(p_agent_ids, p_namespaces, p_source_ids, p_session_ids, p_positions, p_authors, p_texts, p_words,
                      p_contents, p_created_at, p_details) WITH ORDINALITY
               AS g (agent_id, namespace, source_id, session_id, position, author, text, words, content, created_at,
                     details, place)
         WHERE p_kind <> 'turn' OR NOT EXISTS (
               SELECT FROM "public".memory_deletions d
                WHERE d.app_name = p_app_name AND d.user_id = p_user_id
                  AND d.source = md5(concat_ws(chr(1), agent_id, coalesce(session_id, ''), source_id)))
         ORDER BY agent_id, coalesce(session_id, ''), source_id, place DESC
    ), deleted AS MATERIALIZED (
        SELECT sessions.session_id, t.id AS thread_id
          FROM (SELECT DISTINCT session_id FROM given WHERE session_id IS NOT NULL) sessions
          JOIN "public".memory_deletions d
            ON d.app_name = p_app_name AND d.source = md5(chr(1) || sessions.session_id)
           AND d.user_id = ANY (ARRAY[p_user_id, "public".erased_name(p_app_name, p_user_id)])
          LEFT JOIN "public".threads t
            ON t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(sessions.session_id)
           AND t.session_id = sessions.session_id
    ), ready AS MATERIALIZED (
        SELECT g.*, "public".memory_term_keys(p_app_name, p_user_id, g.words) AS terms,
               coalesce(d.tags, old.tags, '{}') AS tags, coalesce(d.metadata, old.metadata, '{}') AS metadata,
               coalesce(d.sources, old.sources) AS sources, coalesce(d.importance, old.importance) AS importance,
               coalesce(d.expires_at, old.expires_at) AS expires_at, old.created_at AS old_created_at,
               old.id AS old_id, (old.text, old.author) IS NOT DISTINCT FROM (g.text, g.author) AS is_same
          FROM given g
         CROSS JOIN LATERAL jsonb_populate_record(NULL::"public".memory_details, g.details::jsonb) d
          LEFT JOIN "public".memories old
            ON old.app_name = p_app_name AND old.user_id = p_user_id AND old.kind = p_kind
           AND old.agent_id = g.agent_id AND md5(coalesce(old.session_id, '')) = md5(coalesce(g.session_id, ''))
           AND md5(old.source_id) = md5(g.source_id)
         WHERE NOT EXISTS (
               SELECT FROM deleted d
                WHERE d.session_id = g.session_id
                  AND (d.thread_id IS NULL
                       OR p_kind = 'turn'
                      AND NOT EXISTS (SELECT FROM "public".events e
                                       WHERE e.thread_id = d.thread_id AND md5(e.id) = md5(g.source_id))))
    ), stored AS (
        INSERT INTO "public".memories AS m (app_name, user_id, agent_id, kind, namespace, source_id, session_id,
                                            position, author, text, terms, length, content, created_at, tags,
                                            metadata, sources, importance, expires_at, labels)
        SELECT p_app_name, p_user_id, agent_id, p_kind, namespace, source_id, session_id, position, author, text,
               terms, cardinality(terms), content::json,
               coalesce(created_at, old_created_at, clock_timestamp()), tags, metadata, sources,
               importance, expires_at, "public".memory_labels(p_app_name, p_user_id, tags, metadata, sources)
          FROM ready
         ORDER BY place
        ON CONFLICT (app_name, user_id, kind, agent_id, md5(coalesce(session_id, '')), md5(source_id)) DO UPDATE
           SET text = excluded.text, terms = excluded.terms, length = excluded.length, content = excluded.content,
               author = excluded.author, position = excluded.position, created_at = excluded.created_at,
               namespace = excluded.namespace, tags = excluded.tags, metadata = excluded.metadata,
               sources = excluded.sources, importance = excluded.importance, expires_at = excluded.expires_at,
               labels = excluded.labels, revision = m.revision + 1, duplicate_of = NULL
         WHERE (m.text, m.author, m.content::text, m.terms, m.tags, m.metadata, m.sources, m.importance, m.expires_at,
                m.namespace, m.position, m.created_at)
               IS DISTINCT FROM (excluded.text, excluded.author, excluded.content::text, excluded.terms, excluded.tags,
                                 excluded.metadata, excluded.sources, excluded.importance, excluded.expires_at,
                                 excluded.namespace, excluded.position, excluded.created_at)
        RETURNING m.id
    ), stale AS (
        DELETE FROM "public".memory_vectors v USING stored
         WHERE v.app_name = p_app_name AND v.user_id = p_user_id AND v.memory_id = stored.id
           AND NOT EXISTS (SELECT FROM ready WHERE ready.old_id = stored.id AND ready.is_same)
    ), queued AS (
        INSERT INTO "public".memory_embedding_queue (app_name, user_id, memory_id)
        SELECT p_app_name, p_user_id, stored.id FROM stored
         WHERE p_embed
           AND NOT EXISTS (SELECT FROM ready
                             JOIN "public".memory_vectors v
                               ON v.app_name = p_app_name AND v.user_id = p_user_id AND v.memory_id = ready.old_id
                            WHERE ready.old_id = stored.id AND ready.is_same)
        ON CONFLICT (app_name, user_id, memory_id)
           DO UPDATE SET attempts = 0, due_at = clock_timestamp(), is_parked = false, error = NULL
    )
    SELECT coalesce(array_agg(id), '{}') INTO v_stored FROM stored;
    -- What a memory stood for, it may not stand for any more.
    UPDATE "public".memories SET duplicate_of = NULL
     WHERE app_name = p_app_name AND user_id = p_user_id AND duplicate_of = ANY (v_stored);
    IF p_details IS NOT NULL THEN
        DELETE FROM "public".memory_metadata
         WHERE app_name = p_app_name AND user_id = p_user_id AND memory_id = ANY (v_stored);
        INSERT INTO "public".memory_metadata (app_name, user_id, memory_id, name, number, text)
        SELECT p_app_name, p_user_id, m.id, entry.key,
               CASE jsonb_typeof(entry.value) WHEN 'number' THEN (entry.value #>> '{}')::numeric END,
               CASE jsonb_typeof(entry.value) WHEN 'string' THEN entry.value #>> '{}' END
          FROM "public".memories m, jsonb_each(m.metadata) AS entry
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_stored)
           AND jsonb_typeof(entry.value) IN ('number', 'string');
    END IF;
    RETURN cardinality(v_stored);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/store_memories.sql', 0, 'b73fc7e01aab7d8d098d035bfdb939ff35189bfe13f0d64b915ffb772369d413', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- memory/store_vectors.sql
-- Store the vectors of memories that have not changed since they were claimed, and remove them from the queue. Vectors of
-- users with many memories go into the HNSW index. Returns the ids that another transaction has locked, for a retry.
CREATE OR REPLACE FUNCTION "public".store_vectors(
    p_app_names text[], p_user_ids text[], p_memory_ids bigint[], p_revisions bigint[], p_model text, p_vectors text[]
) RETURNS bigint[] LANGUAGE plpgsql
-- The plan is cached, possibly while the tables are empty, and must suit large tables.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_locked bigint[];
BEGIN
    WITH given AS (
        SELECT * FROM unnest(p_app_names, p_user_ids, p_memory_ids, p_revisions, p_vectors)
                      AS g (app_name, user_id, memory_id, revision, vector)
    ), current AS (
        -- Locked until commit, so that a text cannot change under its new vector. SKIP LOCKED: a memory that another
        -- transaction changes or deletes would get a stale vector, and waiting for it could deadlock.
        SELECT g.* FROM given g
          JOIN "public".memories m ON m.app_name = g.app_name AND m.user_id = g.user_id AND m.id = g.memory_id
         WHERE m.revision = g.revision
         ORDER BY g.app_name, g.user_id, g.memory_id
           FOR NO KEY UPDATE OF m SKIP LOCKED
    ), kept AS (
        INSERT INTO "public".memory_vectors (app_name, user_id, memory_id, model, in_graph, embedding)
        SELECT c.app_name, c.user_id, c.memory_id, p_model,
               coalesce((SELECT s.graph_model = p_model FROM "public".memory_scopes s
                          WHERE s.app_name = c.app_name AND s.user_id = c.user_id), false),
               c.vector::halfvec
          FROM current c
        ON CONFLICT (app_name, user_id, memory_id) DO UPDATE
           SET model = excluded.model, in_graph = excluded.in_graph, embedding = excluded.embedding
        RETURNING app_name, user_id, memory_id
    ), gone AS (
        DELETE FROM "public".memory_embedding_queue q USING kept
         WHERE q.app_name = kept.app_name AND q.user_id = kept.user_id AND q.memory_id = kept.memory_id
    )
    SELECT coalesce(array_agg(g.memory_id), '{}') INTO v_locked
      FROM given g
      JOIN "public".memories m ON m.app_name = g.app_name AND m.user_id = g.user_id AND m.id = g.memory_id
     WHERE m.revision = g.revision
       AND NOT EXISTS (SELECT FROM kept k WHERE k.app_name = g.app_name AND k.user_id = g.user_id AND k.memory_id = g.memory_id);
    RETURN v_locked;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('memory/store_vectors.sql', 0, 'f0cb5d959be7a4b4a904d37e88b2d88b9d154defe06a9c53e3d19710af175031', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- messages/count_messages.sql
-- Count the messages of a branch (null: the active one) up to an event: rows of `messages`, and tool calls and results
-- without text, which have no row there. Stored counts bound the cost for long threads; if it had to count many rows,
-- `counted_to` and `messages_to` are a count to store.
CREATE OR REPLACE FUNCTION "public".count_messages(
    p_thread_id uuid, p_name text, p_last_sequence bigint,
    OUT messages bigint, OUT counted_to bigint, OUT messages_to bigint
) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_worth_saving CONSTANT bigint := 256;
    v_path record;
    v_end bigint;
    v_from record;
    v_to record;
BEGIN
    messages := 0;
    FOR v_path IN SELECT * FROM "public".branch_path(p_thread_id, p_name) LOOP
        v_end := least(v_path.last_sequence, p_last_sequence);
        v_from := "public".count_messages_to(p_thread_id, v_path.first_sequence - 1);
        v_to := "public".count_messages_to(p_thread_id, v_end);
        messages := messages + greatest(v_to.messages - v_from.messages, 0);
        IF v_to.counted > v_worth_saving THEN
            counted_to := v_end;
            messages_to := v_to.messages;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION "public".count_messages_to(
    p_thread_id uuid, p_sequence bigint, OUT messages bigint, OUT counted bigint
) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_known record;
BEGIN
    IF p_sequence <= 0 THEN
        messages := 0;
        counted := 0;
        RETURN;
    END IF;
    SELECT c.sequence_num, c.messages INTO v_known FROM "public".message_counts c
     WHERE c.thread_id = p_thread_id AND c.sequence_num <= p_sequence ORDER BY c.sequence_num DESC LIMIT 1;
    SELECT count(*) INTO counted FROM "public".messages m
     WHERE m.thread_id = p_thread_id AND m.sequence_num > coalesce(v_known.sequence_num, 0)
       AND m.sequence_num <= p_sequence;
    counted := counted + (
        SELECT count(*) FROM "public".events e
         WHERE e.thread_id = p_thread_id AND e.sequence_num > coalesce(v_known.sequence_num, 0)
           AND e.sequence_num <= p_sequence AND e.event_type IN ('act', 'tool_call', 'observe', 'tool_result')
           AND NOT EXISTS (SELECT FROM "public".messages m
                            WHERE m.thread_id = e.thread_id AND m.sequence_num = e.sequence_num));
    messages := coalesce(v_known.messages, 0) + counted;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('messages/count_messages.sql', 0, '0c965a5e7032f13be139baf833249ed969ea52d615437cdfcbd0f769f88e0be3', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- messages/fill_message_defaults.sql
-- Trigger: an INSERT in psql needs only a thread, a role and a text. It is the text of an event: of the event that `event_id`
-- names, or else of a new one, which is appended here in the thread's order and notifies subscribers.
CREATE OR REPLACE FUNCTION "public".fill_message_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.event_id IS NULL THEN
        NEW.event_id := gen_random_uuid()::text;
        INSERT INTO "public".events (thread_id, id, author, event_type, content)
        VALUES (NEW.thread_id, NEW.event_id, NEW.role,
                CASE NEW.role WHEN 'tool' THEN 'message' ELSE NEW.role || '_message' END,
                json_build_object('role', NEW.role, 'text', NEW.content))
        RETURNING sequence_num, app_name, created_at INTO NEW.sequence_num, NEW.app_name, NEW.created_at;
    ELSE
        SELECT e.sequence_num, e.app_name, e.created_at INTO NEW.sequence_num, NEW.app_name, NEW.created_at
          FROM "public".events e WHERE e.thread_id = NEW.thread_id AND md5(e.id) = md5(NEW.event_id);
        IF NOT FOUND THEN
            RAISE foreign_key_violation USING
                MESSAGE = format('there is no event %s in thread %s', NEW.event_id, NEW.thread_id);
        END IF;
    END IF;
    NEW.id := coalesce(NEW.id, NEW.event_id);
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_message_defaults
    BEFORE INSERT ON "public".messages
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION "public".fill_message_defaults();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('messages/fill_message_defaults.sql', 0, 'ba4a81dcb59a0e3c98989792b37babc6d7f4281e5fe45ef76f4c6da0315e5bde', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- messages/find_messages_by_vector.sql
-- Find the messages of an app, a user or a thread nearest to a vector, with their cosine: by an exact scan of a thread, and
-- of a user or an app with less than 20 000 events, else by the HNSW index.
CREATE OR REPLACE FUNCTION "public".find_messages_by_vector(
    p_app_name text, p_user_id text, p_thread_id uuid, p_model text, p_dimension integer, p_query text, p_roles text[],
    p_since timestamptz, p_until timestamptz, p_limit integer
) RETURNS TABLE (thread_id uuid, sequence_num bigint, cosine double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'relaxed_order' SET hnsw.ef_search = 200 SET hnsw.max_scan_tuples = 200000 AS $$
#variable_conflict use_column
DECLARE
    v_is_few boolean := p_thread_id IS NOT NULL;
BEGIN
    IF NOT v_is_few THEN
        SELECT count(*) < 5000 AND coalesce(sum(last_sequence), 0) < 20000 INTO v_is_few
          FROM (SELECT last_sequence FROM "public".threads t
                 WHERE t.app_name = p_app_name AND (p_user_id IS NULL OR t.user_id = p_user_id) LIMIT 5000) first_threads;
    END IF;
    IF v_is_few OR NOT EXISTS (SELECT FROM pg_index WHERE indisvalid AND indexrelid = to_regclass(
                                   format('%s.%I', '"public"', 'messages_graph_' || md5(p_model)))) THEN
        RETURN QUERY
        WITH compared AS MATERIALIZED (
            SELECT m.thread_id, m.sequence_num, m.embedding <=> p_query::vector AS distance
              FROM "public".threads t JOIN "public".messages m ON m.thread_id = t.id
             WHERE t.app_name = p_app_name AND (p_user_id IS NULL OR t.user_id = p_user_id)
               AND (p_thread_id IS NULL OR t.id = p_thread_id) AND m.embedding_model = p_model
               AND m.embedding IS NOT NULL
               AND "public".message_passes(m, p_thread_id, p_roles, p_since, p_until)
        )
        SELECT c.thread_id, c.sequence_num, 1 - c.distance FROM compared c ORDER BY c.distance LIMIT p_limit;
    ELSE
        -- The planner underestimates the cost of sorting the rows of a btree scan.
        PERFORM set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true);
        RETURN QUERY EXECUTE format(
            'SELECT m.thread_id, m.sequence_num, 1 - (m.embedding::halfvec(%s) <=> $3::halfvec(%s))
               FROM "public".messages m
              WHERE m.embedding_model = %L AND m.app_name IS NOT DISTINCT FROM $1
                AND "public".message_passes(m, NULL, $4, $5, $6)
                AND ($2 IS NULL OR EXISTS (SELECT FROM "public".threads t WHERE t.id = m.thread_id AND t.user_id = $2))
              ORDER BY m.embedding::halfvec(%s) <=> $3::halfvec(%s) LIMIT $7',
            p_dimension, p_dimension, p_model, p_dimension, p_dimension)
        USING p_app_name, p_user_id, p_query, p_roles, p_since, p_until, p_limit;
        PERFORM set_config('enable_sort', 'on', true), set_config('enable_bitmapscan', 'on', true);
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('messages/find_messages_by_vector.sql', 0, '3ccb7ff6d3be56cdf6d61d2287358badeac1023941d69ee91f50e641d70a5787', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- messages/find_messages_by_words.sql
-- Find the messages of an app, a user or a thread that contain words of a query, best first. Reads up to 1 000 messages per
-- word, and up to 1 000 that contain all words, so the cost is limited however frequent a word is. A rare word counts more
-- than a frequent one; a repeated word, or one in a short message, counts a little more. `share` is the score divided by its
-- maximum for the query. `matched` are the places of the found words in the query.
-- SECURITY DEFINER: row level security disables the GIN index, because `@>` is not leakproof. It returns keys and scores;
-- the calling query reads the messages under row level security.
CREATE OR REPLACE FUNCTION "public".find_messages_by_words(
    p_app_name text, p_user_id text, p_thread_id uuid, p_words text, p_roles text[], p_since timestamptz,
    p_until timestamptz, p_limit integer
) RETURNS TABLE (thread_id uuid, sequence_num bigint, share double precision, matched integer[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET work_mem = '16MB' AS $$
#variable_conflict use_column
DECLARE
    -- A key is a hash of a word and the app, or the user. Aligned with the first distinct words of the query.
    v_word_keys bigint[] := ARRAY(
        SELECT ("public".memory_term_keys(p_app_name, coalesce(p_user_id, ''), word))[1]
          FROM string_to_table(p_words, ' ') WITH ORDINALITY AS words (word, place) GROUP BY word ORDER BY min(place) LIMIT 64);
    v_keys bigint[] := ARRAY(SELECT key FROM unnest(v_word_keys) WITH ORDINALITY AS given (key, place)
                              WHERE key IS NOT NULL GROUP BY key ORDER BY min(place) LIMIT 32);
BEGIN
    RETURN QUERY
    WITH found AS (
        (SELECT m.thread_id, m.sequence_num, m.terms FROM "public".messages m
          WHERE cardinality(v_keys) > 1 AND m.terms @> v_keys AND m.terms IS NOT NULL
            AND m.app_name IS NOT DISTINCT FROM p_app_name
            AND "public".message_passes(m, p_thread_id, p_roles, p_since, p_until) LIMIT 1000)
        UNION ALL
        SELECT part.thread_id, part.sequence_num, part.terms
          FROM unnest(v_keys) AS wanted (key),
               LATERAL (SELECT m.thread_id, m.sequence_num, m.terms FROM "public".messages m
                         WHERE m.terms @> ARRAY[wanted.key] AND m.terms IS NOT NULL
                           AND m.app_name IS NOT DISTINCT FROM p_app_name
                           AND "public".message_passes(m, p_thread_id, p_roles, p_since, p_until) LIMIT 1000) part
    ), candidates AS MATERIALIZED (
        SELECT DISTINCT ON (thread_id, sequence_num) * FROM found ORDER BY thread_id, sequence_num
    ), hits AS MATERIALIZED (
        SELECT wanted.key, c.thread_id, c.sequence_num, cardinality(c.terms) / 2.0 AS length,
               cardinality(array_positions(c.terms, wanted.key)) AS frequency
          FROM candidates c, unnest(v_keys) AS wanted (key)
         WHERE c.terms @> ARRAY[wanted.key]
    ), words AS (
        SELECT wanted.key, array_position(v_word_keys, wanted.key) AS place,
               1 / (1 + ln(greatest((SELECT count(*) FROM hits WHERE hits.key = wanted.key), 1))) AS weight
          FROM unnest(v_keys) AS wanted (key)
    )
    SELECT hits.thread_id, hits.sequence_num,
           (sum(weight * frequency / (frequency + 0.9 * (0.8 + length / 200))) / (SELECT sum(weight) FROM words))
               ::double precision,
           array_agg(place)
      FROM hits JOIN words USING (key)
     GROUP BY hits.thread_id, hits.sequence_num ORDER BY 3 DESC, 2 DESC, 1 LIMIT p_limit;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('messages/find_messages_by_words.sql', 0, '35cd5592439e9180864444e88f28d8e2726939357450db38dd253c36f09b5f7d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- messages/index_messages.sql
-- Store the words and vectors of messages. Skips messages that another transaction indexes or deletes. A null model means
-- that the message was not embedded; a model without a vector means that the model refused the text. Returns the number of
-- changed messages.
CREATE OR REPLACE FUNCTION "public".index_messages(
    p_thread_ids uuid[], p_sequence_nums bigint[], p_words text[], p_models text[], p_vectors text[]
) RETURNS bigint LANGUAGE plpgsql
-- The plan is cached, possibly while the tables are empty, and must suit large tables.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_indexed bigint;
BEGIN
    WITH given AS (
        SELECT g.*, t.app_name, t.user_id
          FROM unnest(p_thread_ids, p_sequence_nums, p_words, p_models, p_vectors)
               AS g (thread_id, sequence_num, words, model, vector)
          JOIN "public".threads t ON t.id = g.thread_id
    ), held AS MATERIALIZED (
        SELECT g.* FROM given g
          JOIN "public".messages m ON m.thread_id = g.thread_id AND m.sequence_num = g.sequence_num
         WHERE m.terms IS NULL OR m.embedding_model IS NULL AND g.model IS NOT NULL
         ORDER BY g.thread_id, g.sequence_num
           FOR NO KEY UPDATE OF m SKIP LOCKED
    )
    UPDATE "public".messages m
       SET terms = "public".memory_term_keys(h.app_name, '', h.words)
                   || "public".memory_term_keys(h.app_name, h.user_id, h.words),
           embedding = h.vector::vector,
           embedding_model = h.model
      FROM held h
     WHERE m.thread_id = h.thread_id AND m.sequence_num = h.sequence_num;
    GET DIAGNOSTICS v_indexed = ROW_COUNT;
    RETURN v_indexed;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('messages/index_messages.sql', 0, '3e68f2cc0f74d6b0aa0e6f2a05e5e8e2cd316e5e51eef664ca502a9019cd8286', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- messages/message_passes.sql
-- Return whether a message matches the filters of a search; a null filter matches everything.
CREATE OR REPLACE FUNCTION "public".message_passes(
    m "public".messages, p_thread_id uuid, p_roles text[], p_since timestamptz, p_until timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (p_thread_id IS NULL OR m.thread_id = p_thread_id) AND (p_roles IS NULL OR m.role = ANY (p_roles))
       AND (p_since IS NULL OR m.created_at >= p_since) AND (p_until IS NULL OR m.created_at < p_until)
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('messages/message_passes.sql', 0, '6859d91b75ae582eb5b72fe8a65956fc50e45181f8bd590b2d80ee4c581b4af3', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/append_run_event.sql
-- Append an event of the engine about a run.
CREATE OR REPLACE FUNCTION "public".append_run_event(
    p_thread_id uuid, p_run_id text, p_event_id text, p_event_type text, p_content json
) RETURNS void LANGUAGE sql AS $$
    SELECT "public".append_event(
        p_thread_id, p_event_id, p_run_id, '', 'system', p_event_type, p_content, '{}')
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/append_run_event.sql', 0, '0c2d7b869d32bf8980cd240a00a2a07426f8899bc1a8675cc66b4f4484224048', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/check_fence.sql
-- Return true if an attempt holds a run; a null attempt is not checked. SQLSTATE CZ404: no such run; CZ423: another
-- attempt holds it, or none. The function locks the thread, as every change of a run does first: the result holds until
-- the commit.
CREATE OR REPLACE FUNCTION "public".check_fence(p_thread_id uuid, p_run_id text, p_attempt integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    IF p_attempt IS NULL THEN
        RETURN true;
    END IF;
    PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT status, attempt INTO v_run FROM "public".runs WHERE thread_id = p_thread_id AND id = p_run_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    IF v_run.status <> 'running' OR v_run.attempt <> p_attempt THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ423',
            MESSAGE = format('run %s is %s, at attempt %s; attempt %s holds it no longer and cannot write', p_run_id,
                             v_run.status, v_run.attempt, p_attempt);
    END IF;
    RETURN true;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/check_fence.sql', 0, '0bdaa178b992ce9294f94a3fc516d304f98579eb79f5e568ec83e788878b5732', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/claim_run.sql
-- Give one pending run to a worker, whatever its handler: its next attempt begins, with a lease. With p_from_waiting it
-- also takes a run whose wait is not over. SQLSTATE CZ404: no such run; CZ409, CZ422: the run is neither.
CREATE OR REPLACE FUNCTION "public".claim_run(
    p_thread_id uuid, p_run_id text, p_worker_id text, p_lease interval, p_event_id text, p_from_waiting boolean
) RETURNS SETOF "public".run_rows LANGUAGE plpgsql AS $$
DECLARE
    v_attempt integer;
BEGIN
    PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    UPDATE "public".runs
       SET status = 'running', attempt = attempt + 1, worker_id = p_worker_id, available_at = NULL,
           claimable_since = greatest(created_at, available_at),
           lease_duration = p_lease, lease_expires_at = clock_timestamp() + p_lease,
           started_at = coalesce(started_at, clock_timestamp())
     WHERE thread_id = p_thread_id AND id = p_run_id
       AND (status = 'pending' OR p_from_waiting AND status = 'waiting')
    RETURNING attempt INTO v_attempt;
    IF NOT FOUND THEN
        PERFORM "public".lock_run(p_thread_id, p_run_id, NULL, 'running');
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s is waiting; only a pending run can be claimed', p_run_id);
    END IF;
    PERFORM "public".append_run_event(
        p_thread_id, p_run_id, p_event_id, CASE WHEN v_attempt = 1 THEN 'run_started' ELSE 'run_resumed' END,
        json_build_object('run_id', p_run_id, 'status', 'running', 'attempt', v_attempt, 'worker_id', p_worker_id));
    RETURN QUERY SELECT * FROM "public".run_rows WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/claim_run.sql', 0, 'a48986ce1ae5e70ff534cbd9e5784df616ce1f04c3c980b4c3291a1682851524', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/claim_runs.sql
-- Claim pending runs of these handlers for workers, one for each entry of p_worker_ids (a worker may be named more than
-- once). Runs of a higher priority come first, then those that became due first. A run whose queue is full, or has used its rate,
-- stays. Runs, threads and limited queues that another transaction has locked are skipped, so a claim never waits. Runs of one
-- handler, queue and priority are a group; groups of one priority are served in the order of their oldest run.
CREATE OR REPLACE FUNCTION "public".claim_runs(p_handlers text[], p_worker_ids text[], p_lease interval)
RETURNS SETOF "public".run_rows LANGUAGE plpgsql
-- A plan made for an empty table must stay good: scan the index of pending runs and stop at the limit.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_group record;
    v_limits "public".run_queues;
    v_run record;
    v_room integer;
    v_tokens double precision;
    v_before integer;
    v_claimed integer := 0;
    -- A constant bounds the index scan: entries that are due later are not read.
    v_now timestamptz := clock_timestamp();
BEGIN
    FOR v_group IN
        -- The first entry of each group in the index. One step per group: the length of a queue does not matter.
        WITH RECURSIVE groups AS (
            SELECT first.*
              FROM (SELECT DISTINCT unnest(p_handlers)) AS asked (handler)
             CROSS JOIN LATERAL (
                   SELECT r.handler, r.queue, -r.priority AS rank, greatest(r.created_at, r.available_at) AS due_at
                     FROM "public".runs r
                    WHERE r.handler = asked.handler AND r.status = 'pending'
                    ORDER BY r.queue, -r.priority, greatest(r.created_at, r.available_at) LIMIT 1) AS first
             UNION ALL
            SELECT next.*
              FROM groups
             CROSS JOIN LATERAL (
                   SELECT r.handler, r.queue, -r.priority AS rank, greatest(r.created_at, r.available_at) AS due_at
                     FROM "public".runs r
                    WHERE r.handler = groups.handler AND r.status = 'pending'
                      AND (r.queue, -r.priority) > (groups.queue, groups.rank)
                    ORDER BY r.queue, -r.priority, greatest(r.created_at, r.available_at) LIMIT 1) AS next
        )
        SELECT handler, queue, rank FROM groups WHERE due_at <= v_now ORDER BY rank, due_at
    LOOP
        v_room := cardinality(p_worker_ids) - v_claimed;
        SELECT * INTO v_limits FROM "public".run_queues q
         WHERE q.name = CASE v_group.queue WHEN '' THEN v_group.handler ELSE v_group.queue END;
        IF FOUND THEN
            -- The lock makes the count of running runs and the tokens true until the commit.
            SELECT * INTO v_limits FROM "public".run_queues q WHERE q.name = v_limits.name FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            IF v_limits.concurrency IS NOT NULL THEN
                v_room := least(v_room, v_limits.concurrency - (
                    SELECT count(*) FROM "public".runs r
                     WHERE r.status = 'running'
                       AND (r.queue = v_limits.name OR r.queue = '' AND r.handler = v_limits.name)));
            END IF;
            IF v_limits.rate IS NOT NULL THEN
                v_tokens := least(v_limits.rate, v_limits.tokens + v_limits.rate
                    * extract(epoch FROM greatest(clock_timestamp() - v_limits.refilled_at, interval '0'))
                    / extract(epoch FROM v_limits.period));
                v_room := least(v_room, floor(v_tokens)::integer);
            END IF;
            CONTINUE WHEN v_room <= 0;
        END IF;
        v_before := v_claimed;
        FOR v_run IN
            SELECT r.thread_id, r.id FROM "public".runs r JOIN "public".threads t ON t.id = r.thread_id
             WHERE r.handler = v_group.handler AND r.queue = v_group.queue AND -r.priority = v_group.rank
               AND r.status = 'pending' AND greatest(r.created_at, r.available_at) <= v_now
             ORDER BY greatest(r.created_at, r.available_at), r.id
             LIMIT v_room
               FOR UPDATE OF r SKIP LOCKED
               FOR NO KEY UPDATE OF t SKIP LOCKED
        LOOP
            v_claimed := v_claimed + 1;
            RETURN QUERY SELECT * FROM "public".claim_run(
                v_run.thread_id, v_run.id, p_worker_ids[v_claimed], p_lease, gen_random_uuid()::text, false);
        END LOOP;
        IF v_limits.rate IS NOT NULL AND v_claimed > v_before THEN
            UPDATE "public".run_queues q SET tokens = v_tokens - (v_claimed - v_before), refilled_at = clock_timestamp()
             WHERE q.name = v_limits.name;
        END IF;
        EXIT WHEN v_claimed >= cardinality(p_worker_ids);
    END LOOP;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/claim_runs.sql', 0, '7e49a4b2aacc2eac8702115c3e01f5f8fef12750d43107d2f2c6589f3ad970cf', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/create_run.sql
-- Create a run with its event. A `running` one is attempt 1, leased to its worker. SQLSTATE CZ404: no such thread;
-- CZ409: the id is taken.
CREATE OR REPLACE FUNCTION "public".create_run(
    p_thread_id uuid, p_run_id text, p_status text, p_handler text, p_input json, p_max_attempts integer,
    p_available_at timestamptz, p_worker_id text, p_lease interval, p_event_id text, p_content json,
    p_queue text DEFAULT '', p_priority integer DEFAULT 0, p_traceparent text DEFAULT NULL
) RETURNS SETOF "public".run_rows LANGUAGE plpgsql AS $$
DECLARE
    v_app_name text;
    v_is_running boolean := p_status = 'running';
BEGIN
    SELECT app_name INTO v_app_name FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    INSERT INTO "public".runs (
        thread_id, id, app_name, status, handler, input, max_attempts, available_at, started_at, attempt, worker_id,
        lease_duration, lease_expires_at, queue, priority, traceparent)
    VALUES (
        p_thread_id, p_run_id, v_app_name, p_status, p_handler, p_input, p_max_attempts, p_available_at,
        CASE WHEN v_is_running THEN clock_timestamp() END, v_is_running::integer,
        CASE WHEN v_is_running THEN p_worker_id END, CASE WHEN v_is_running THEN p_lease END,
        CASE WHEN v_is_running THEN clock_timestamp() + p_lease END, p_queue, p_priority,
        p_traceparent)
    ON CONFLICT (thread_id, id) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s exists already; choose another id', p_run_id);
    END IF;
    PERFORM "public".append_run_event(
        p_thread_id, p_run_id, p_event_id, CASE WHEN v_is_running THEN 'run_started' ELSE 'run_created' END, p_content);
    RETURN QUERY SELECT * FROM "public".run_rows WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/create_run.sql', 0, 'da37b312c5be7de680db8f4503b47b1de9568a6e061804b91105e01566ed6a58', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/end_runs.sql
-- End runs, each with its event: `completed` with a result, `failed` with an error, or `cancelled`. Every run ends here.
-- p_attempts are the attempts that end their runs; null: the caller executes none. A null in p_contents stands for an event
-- of id, status and error. An item that cannot be ended stops no other. Item i is answered with place i and an outcome:
--   ended    `run` is the run after its end
--   fenced   the attempt does not hold the run; nothing changed; `run` is the run as it is
--   illegal  the run cannot become this status (`run_transition_allowed`); nothing changed; `run` is the run as it is
--   missing  there is no such run
--   busy     without p_wait only: another transaction holds the run or its thread. A batch never waits for one of its
--            items: two batches that wait while they hold locks could wait for each other
CREATE OR REPLACE FUNCTION "public".end_runs(
    p_thread_ids uuid[], p_run_ids text[], p_attempts integer[], p_statuses text[], p_results text[], p_errors text[],
    p_event_ids text[], p_contents text[], p_wait boolean
) RETURNS TABLE (place integer, outcome text, run "public".run_rows) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run record;
BEGIN
    FOR place IN SELECT n FROM generate_subscripts(p_run_ids, 1) AS n ORDER BY p_thread_ids[n], p_run_ids[n] LOOP
        IF p_wait THEN
            PERFORM FROM "public".threads WHERE id = p_thread_ids[place] FOR NO KEY UPDATE;
            PERFORM FROM "public".runs WHERE thread_id = p_thread_ids[place] AND id = p_run_ids[place] FOR UPDATE;
        END IF;
        PERFORM FROM "public".threads WHERE id = p_thread_ids[place] FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            SELECT r.status, r.attempt INTO v_run FROM "public".runs r
             WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place] FOR UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            outcome := CASE WHEN EXISTS (SELECT FROM "public".runs r
                                          WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place])
                            THEN 'busy' ELSE 'missing' END;
        ELSIF p_attempts[place] IS NOT NULL AND (v_run.status <> 'running' OR v_run.attempt <> p_attempts[place]) THEN
            outcome := 'fenced';
        ELSIF NOT "public".run_transition_allowed(v_run.status, p_statuses[place]) THEN
            outcome := 'illegal';
        ELSE
            outcome := 'ended';
            UPDATE "public".runs r
               SET status = p_statuses[place], result = coalesce(p_results[place]::json, r.result),
                   error = CASE WHEN p_statuses[place] <> 'completed' THEN coalesce(p_errors[place], r.error) END,
                   completed_at = clock_timestamp(), available_at = NULL, lease_expires_at = NULL
             WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place];
            PERFORM "public".append_run_event(
                p_thread_ids[place], p_run_ids[place], p_event_ids[place],
                CASE p_statuses[place] WHEN 'completed' THEN 'run_finished' ELSE 'run_' || p_statuses[place] END,
                coalesce(p_contents[place]::json, json_build_object(
                    'run_id', p_run_ids[place], 'status', p_statuses[place], 'error', p_errors[place])));
        END IF;
        SELECT r.* INTO run FROM "public".run_rows r
         WHERE r.thread_id = p_thread_ids[place] AND r.id = p_run_ids[place] AND outcome <> 'busy';
        RETURN NEXT;
    END LOOP;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/end_runs.sql', 0, '78806a93f74371b44cf0edfd2c32d4176a52276de424c472d16102f1bf991772', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/fill_run_defaults.sql
-- Fill a run that an INSERT in psql creates: it needs only a thread. The trigger appends the event as `create_run` does.
-- A run that is inserted without `lease_expires_at` never expires. The engine sets `app_name`, so the trigger does not fire
-- for its own runs.
CREATE OR REPLACE FUNCTION "public".fill_run_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The thread is locked before the run, as everywhere.
    SELECT app_name INTO NEW.app_name FROM "public".threads WHERE id = NEW.thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    IF NEW.status <> 'pending' THEN
        NEW.started_at := coalesce(NEW.started_at, clock_timestamp());
    END IF;
    IF NEW.status IN ('completed', 'failed', 'cancelled') THEN
        NEW.completed_at := coalesce(NEW.completed_at, clock_timestamp());
    END IF;
    IF NOT EXISTS (SELECT FROM "public".runs WHERE thread_id = NEW.thread_id AND id = NEW.id) THEN
        PERFORM "public".append_run_event(
            NEW.thread_id, NEW.id, gen_random_uuid()::text,
            CASE NEW.status WHEN 'pending' THEN 'run_created' WHEN 'running' THEN 'run_started'
                            WHEN 'completed' THEN 'run_finished' ELSE 'run_' || NEW.status END,
            json_build_object('run_id', NEW.id));
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_run_defaults
    BEFORE INSERT ON "public".runs
    FOR EACH ROW WHEN (NEW.app_name IS NULL)
    EXECUTE FUNCTION "public".fill_run_defaults();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/fill_run_defaults.sql', 0, '1f407ead4bb4a4832938706db0e220bf8102ee67a0c25a839bd69b4fbbf972ef', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/lock_run.sql
-- Lock a thread, then one of its runs (the same order everywhere), and return what the caller decides by.
-- SQLSTATE CZ404: no such run; CZ423: p_attempt (null: not checked) does not hold the run; CZ422: the run cannot become
-- p_status (null: not checked).
CREATE OR REPLACE FUNCTION "public".lock_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_status text,
    OUT app_name text, OUT status text, OUT attempt integer, OUT handler text, OUT failures integer,
    OUT max_attempts integer, OUT lease_duration interval, OUT lease_expires_at timestamptz, OUT wait_kind text,
    OUT wait_key text, OUT wait_expires_at timestamptz
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT r.app_name, r.status, r.attempt, r.handler, r.failures, r.max_attempts, r.lease_duration,
           r.lease_expires_at, r.wait_kind, r.wait_key, r.wait_expires_at
      INTO app_name, status, attempt, handler, failures, max_attempts, lease_duration,
           lease_expires_at, wait_kind, wait_key, wait_expires_at
      FROM "public".runs r WHERE r.thread_id = p_thread_id AND r.id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    IF p_attempt IS NOT NULL AND (status <> 'running' OR attempt <> p_attempt) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ423',
            MESSAGE = format('run %s is %s, at attempt %s; attempt %s holds it no longer and cannot write', p_run_id,
                             status, attempt, p_attempt);
    END IF;
    IF p_status IS NOT NULL AND NOT "public".run_transition_allowed(status, p_status) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; it cannot become %s', p_run_id, status, p_status);
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/lock_run.sql', 0, '5626ed5f1813bbb4627ecb25218e708873cf06695b57df5dd23abe9f3a976706', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/prune_runs.sql
-- Delete ended runs older than p_age; their events stay. Return how many.
CREATE OR REPLACE FUNCTION "public".prune_runs(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM "public".runs
         WHERE status IN ('completed', 'failed', 'cancelled') AND completed_at < now() - p_age
        RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/prune_runs.sql', 0, '3dc70eefe95460651b12cbbf4b3f977ec64f80006f5791c16a1bfe179e0ac03a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/record_run_progress.sql
-- Add a thinking step, a tool call or a tool's result to a running run, with its event, and extend the lease once half
-- of it has passed. A result is written into the call of the same id. Without an event id no event is written (the event of
-- an adapter carries the same), and an entry that equals the last one is not added again: its writer lost the answer.
-- SQLSTATE CZ404: no such run or call; CZ422: the run is not running; CZ423: p_attempt (null: not checked) does not hold it.
CREATE OR REPLACE FUNCTION "public".record_run_progress(
    p_thread_id uuid, p_run_id text, p_kind text, p_entry jsonb, p_event_id text, p_content json,
    p_attempt integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_owner text;
    v_place integer;
BEGIN
    SELECT * INTO v_run FROM "public".lock_run(p_thread_id, p_run_id, p_attempt, NULL);
    IF v_run.status <> 'running' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; only a running run makes progress', p_run_id, v_run.status);
    END IF;
    IF v_run.lease_expires_at < clock_timestamp() + v_run.lease_duration / 2 THEN
        UPDATE "public".runs SET lease_expires_at = clock_timestamp() + v_run.lease_duration
         WHERE thread_id = p_thread_id AND id = p_run_id;
    END IF;
    IF p_kind = 'thought' THEN
        UPDATE "public".runs SET thinking_steps = thinking_steps || p_entry
         WHERE thread_id = p_thread_id AND id = p_run_id AND (thinking_steps -> -1) IS DISTINCT FROM p_entry;
    ELSIF p_kind = 'act' THEN
        UPDATE "public".runs SET tool_calls = tool_calls || p_entry
         WHERE thread_id = p_thread_id AND id = p_run_id AND (tool_calls -> -1) IS DISTINCT FROM p_entry;
    ELSE
        -- A run that resumes another one answers the call of that one.
        SELECT r.id, call.place - 1 INTO v_owner, v_place
          FROM "public".runs r, jsonb_array_elements(r.tool_calls) WITH ORDINALITY AS call (entry, place)
         WHERE r.thread_id = p_thread_id AND call.entry ->> 'id' = p_entry ->> 'id'
         ORDER BY (r.id = p_run_id) DESC, r.created_at DESC, call.place DESC LIMIT 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ404',
                MESSAGE = format('run %s made no tool call %s', p_run_id, p_entry ->> 'id');
        END IF;
        UPDATE "public".runs
           SET tool_calls = jsonb_set(tool_calls, ARRAY[v_place::text], (tool_calls -> v_place) || p_entry)
         WHERE thread_id = p_thread_id AND id = v_owner;
    END IF;
    IF p_event_id IS NOT NULL THEN
        PERFORM "public".append_run_event(p_thread_id, p_run_id, p_event_id, p_kind, p_content);
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/record_run_progress.sql', 0, '1fe2ba9bb6c54fe089efbf0f363ee0bb4c6859e9202dcbafd1ee61dcf46a32a5', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/release_expired_leases.sql
-- Note that leases are swept now and return when the sweeps began again after the last gap longer than p_gap; null if
-- there was none. During a gap the server was away, or no process ran: workers could not extend their leases either. A gap
-- within two minutes after another one does not count: sweeps that are always slow must not keep dead runs.
CREATE OR REPLACE FUNCTION "public".note_lease_sweep(p_gap interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_before timestamptz;
BEGIN
    SELECT last_run_at INTO v_before FROM "public".maintenance_jobs WHERE name = 'lease_sweep';
    IF v_before < v_now - p_gap THEN
        INSERT INTO "public".maintenance_jobs AS m (name, last_run_at) VALUES ('lease_sweep_resumed', v_now)
        ON CONFLICT (name) DO UPDATE SET last_run_at = EXCLUDED.last_run_at
         WHERE m.last_run_at < v_now - interval '2 minutes';
    END IF;
    -- Written once in a second, not by each process.
    IF v_before IS NULL OR v_before < v_now - interval '1 second' THEN
        INSERT INTO "public".maintenance_jobs AS m (name, last_run_at) VALUES ('lease_sweep', v_now)
        ON CONFLICT (name) DO UPDATE SET last_run_at = EXCLUDED.last_run_at;
    END IF;
    RETURN (SELECT last_run_at FROM "public".maintenance_jobs WHERE name = 'lease_sweep_resumed');
END
$$;

-- Release the runs whose lease expired, each with an event: `release_run` decides whether the run is claimable again or
-- fails. Return how many. After a gap between two sweeps that is longer than p_gap (null: no limit), workers have the time
-- of a lease, between 5 and 30 seconds, to extend their leases or to release their runs: an outage is not their failure.
CREATE OR REPLACE FUNCTION "public".release_expired_leases(p_gap interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_count bigint := 0;
    v_resumed timestamptz := "public".note_lease_sweep(p_gap);
BEGIN
    FOR v_run IN
        SELECT thread_id, id, handler FROM "public".runs
         WHERE status = 'running' AND lease_expires_at < clock_timestamp()
           AND (p_gap IS NULL OR v_resumed IS NULL
                OR v_resumed < clock_timestamp()
                               - greatest(least(lease_duration, interval '30 seconds'), interval '5 seconds'))
         ORDER BY thread_id, id
    LOOP
        PERFORM FROM "public".threads WHERE id = v_run.thread_id FOR NO KEY UPDATE SKIP LOCKED;
        -- Checked again under the lock: the lease may have been extended in between. A transaction that extends leases
        -- now is not waited for: it may wait for a run that was released here before.
        IF FOUND AND EXISTS (
            SELECT FROM "public".runs WHERE thread_id = v_run.thread_id AND id = v_run.id
               AND status = 'running' AND lease_expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED
        ) THEN
            PERFORM "public".release_run(
                v_run.thread_id, v_run.id, NULL,
                CASE WHEN v_run.handler IS NULL THEN 'the process that executed the run went away'
                     ELSE 'the lease of its worker ran out' END,
                interval '0', interval '0', gen_random_uuid()::text);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END
$$;

-- The same, for schedulers that call it every ten seconds.
CREATE OR REPLACE FUNCTION "public".release_expired_leases() RETURNS bigint LANGUAGE sql AS $$
    SELECT "public".release_expired_leases(interval '25 seconds')
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/release_expired_leases.sql', 0, 'a761239631ebfe853fc56ecf8d3230ff9f46e9eb7fe12e7b00b952317330e25d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/release_run.sql
-- Make a running run pending again, with its event. p_cause says what went wrong; null: its worker stops, or PostgreSQL was
-- unavailable if there is a p_backoff, and the attempt does not count as a failure. A run that went wrong too often fails
-- with the cause, and so does one without a handler, which no worker could claim. Return the new status. The time until
-- the next attempt doubles with each failure, from p_backoff up to p_longest.
CREATE OR REPLACE FUNCTION "public".release_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_cause text, p_backoff interval, p_longest interval,
    p_event_id text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_again_at timestamptz;
BEGIN
    SELECT * INTO v_run FROM "public".lock_run(p_thread_id, p_run_id, p_attempt, 'pending');
    IF p_cause IS NOT NULL AND (v_run.handler IS NULL OR v_run.failures + 1 >= v_run.max_attempts) THEN
        PERFORM "public".end_runs(
            ARRAY[p_thread_id], ARRAY[p_run_id], ARRAY[p_attempt], ARRAY['failed'], NULL, ARRAY[p_cause],
            ARRAY[p_event_id],
            ARRAY[json_build_object('run_id', p_run_id, 'status', 'failed', 'error', p_cause,
                                    'failures', v_run.failures + 1)::text],
            true);
        RETURN 'failed';
    END IF;
    IF p_backoff > interval '0' THEN
        v_again_at := clock_timestamp() + least(p_backoff * 2 ^ least(v_run.failures, 20), p_longest);
    END IF;
    UPDATE "public".runs
       SET status = 'pending', error = coalesce(p_cause, error), available_at = v_again_at, lease_expires_at = NULL,
           failures = failures + CASE WHEN p_cause IS NULL THEN 0 ELSE 1 END
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM "public".append_run_event(
        p_thread_id, p_run_id, p_event_id, 'run_released',
        json_build_object('run_id', p_run_id, 'status', 'pending', 'reason', coalesce(p_cause, CASE WHEN p_backoff > interval '0' THEN 'PostgreSQL was unavailable'
                                                                           ELSE 'its worker stops' END),
                          'is_failure', p_cause IS NOT NULL, 'available_at', v_again_at));
    RETURN 'pending';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/release_run.sql', 0, '6b0b18a5358826501d715b40dcd682d59242c75bb94f4549bab199c6efbed085', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/resolve_wait.sql
-- End a wait: store the signal that ended it and make the run claimable. The caller holds the locks of the thread and
-- the run. A kept signal of the same key that may not answer this wait is replaced.
CREATE OR REPLACE FUNCTION "public".resolve_wait(
    p_thread_id uuid, p_run_id text, p_source text, p_payload json, p_may_answer text[] DEFAULT NULL,
    p_signal_id text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    UPDATE "public".runs
       SET status = 'pending', available_at = NULL, failures = 0
     WHERE thread_id = p_thread_id AND id = p_run_id
    RETURNING app_name, wait_key INTO v_run;
    INSERT INTO "public".run_signals (
        thread_id, run_id, correlation_key, app_name, source, payload, may_answer, signal_id, used_at)
    VALUES (p_thread_id, p_run_id, v_run.wait_key, v_run.app_name, p_source, p_payload, p_may_answer, p_signal_id,
            clock_timestamp())
    ON CONFLICT (thread_id, run_id, md5(correlation_key)) DO UPDATE
       SET source = excluded.source, payload = excluded.payload, may_answer = excluded.may_answer,
           signal_id = excluded.signal_id, used_at = excluded.used_at;
    PERFORM "public".append_run_event(
        p_thread_id, p_run_id, gen_random_uuid()::text, 'run_signalled',
        json_build_object('run_id', p_run_id, 'status', 'pending', 'source', p_source,
                          'correlation_key', v_run.wait_key, 'payload', p_payload));
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/resolve_wait.sql', 0, '7456991d37f0e61c6f0f4d02b8be538076285841aafd7aa2c95d93a9401e3bb3', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/resume_due_waits.sql
-- End the waits that are due: a timer fires, a user's message ends a wait for a message, and a wait that timed out takes
-- its timeout branch or fails its run. Return how many.
CREATE OR REPLACE FUNCTION "public".resume_due_waits() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_found record;
    v_run record;
    v_message record;
    v_count bigint := 0;
BEGIN
    FOR v_found IN
        SELECT thread_id, id FROM "public".runs
         WHERE status = 'waiting' AND wait_expires_at <= clock_timestamp()
         UNION
        SELECT r.thread_id, r.id FROM "public".runs r
         WHERE r.status = 'waiting' AND r.wait_kind = 'message'
           AND EXISTS (SELECT FROM "public".messages m
                        WHERE m.thread_id = r.thread_id AND m.sequence_num > r.wait_after AND m.role = 'user')
         ORDER BY thread_id, id
    LOOP
        PERFORM FROM "public".threads WHERE id = v_found.thread_id FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- Checked again under the lock: a signal may have ended the wait in between.
        SELECT * INTO v_run FROM "public".runs
         WHERE thread_id = v_found.thread_id AND id = v_found.id AND status = 'waiting' FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF v_run.wait_kind = 'message' THEN
            SELECT m.id, m.sequence_num, m.content INTO v_message FROM "public".messages m
             WHERE m.thread_id = v_run.thread_id AND m.sequence_num > v_run.wait_after AND m.role = 'user'
             ORDER BY m.sequence_num LIMIT 1;
            IF FOUND THEN
                PERFORM "public".resolve_wait(
                    v_run.thread_id, v_run.id, 'message',
                    json_build_object('text', v_message.content, 'message_id', v_message.id,
                                      'sequence_num', v_message.sequence_num));
                v_count := v_count + 1;
                CONTINUE;
            END IF;
        END IF;
        CONTINUE WHEN v_run.wait_expires_at IS NULL OR v_run.wait_expires_at > clock_timestamp();
        IF v_run.wait_kind = 'timer' THEN
            PERFORM "public".resolve_wait(v_run.thread_id, v_run.id, 'timer', 'null');
        ELSIF v_run.wait_timeout_node IS NOT NULL THEN
            PERFORM "public".resolve_wait(v_run.thread_id, v_run.id, 'timeout', 'null');
        ELSE
            PERFORM "public".end_runs(
                ARRAY[v_run.thread_id], ARRAY[v_run.id], NULL, ARRAY['failed'], NULL,
                ARRAY[format('no answer to %s arrived in time', v_run.wait_key)], ARRAY[gen_random_uuid()::text], NULL,
                true);
        END IF;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/resume_due_waits.sql', 0, 'ebd20c688f0eab598abe60847ac7343af8d07a1f2bdbd31379af4d6fc22faff0', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/retry_run.sql
-- Make a failed run pending again, with all its attempts and its event. SQLSTATE CZ404: no such run; CZ422: it has not
-- failed.
CREATE OR REPLACE FUNCTION "public".retry_run(p_thread_id uuid, p_run_id text, p_event_id text)
RETURNS SETOF "public".run_rows LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    SELECT * INTO v_run FROM "public".lock_run(p_thread_id, p_run_id, NULL, 'pending');
    IF v_run.status <> 'failed' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; only a failed run can be tried again', p_run_id, v_run.status);
    END IF;
    UPDATE "public".runs SET status = 'pending', error = NULL, failures = 0, completed_at = NULL
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM "public".append_run_event(
        p_thread_id, p_run_id, p_event_id, 'run_retried',
        json_build_object('run_id', p_run_id, 'status', 'pending'));
    RETURN QUERY SELECT * FROM "public".run_rows WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/retry_run.sql', 0, 'f7a55dd7990d20bedaef1d3a388d958b5c639bb4c4f045c9cdf84d4bc03b9dab', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/run_transition_allowed.sql
-- Return whether a run may change from one status to another.
CREATE OR REPLACE FUNCTION "public".run_transition_allowed(p_from text, p_to text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_from, p_to) IN (
        ('pending', 'running'), ('pending', 'failed'), ('pending', 'cancelled'),
        ('running', 'waiting'), ('running', 'completed'), ('running', 'failed'), ('running', 'cancelled'),
        ('running', 'pending'),  -- its lease expired, or its worker released it
        ('waiting', 'pending'), ('waiting', 'running'), ('waiting', 'failed'), ('waiting', 'cancelled'),
        ('waiting', 'completed'),  -- another run of the thread continues with the answer
        ('failed', 'pending')    -- a retry was requested
    )
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/run_transition_allowed.sql', 0, '73a6099b6af912061b49332f9351caea670388f1f737ec6ee7dfef37f31a7152', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/signal_run.sql
-- Store a signal for a run. p_may_answer lists the wait kinds that the sender may answer; null: all kinds. Answers:
--   resumed    the run was waiting for this key; it can be claimed
--   kept       the run does not wait yet; a later wait for this key uses the signal if its kind is one of p_may_answer
--   duplicate  an earlier signal of this key counts
-- The kind, the key and the right are checked under the lock of the run. A kept signal blocks no sender with more rights:
-- that sender's signal replaces it. The same p_signal_id again gets the same answer.
-- SQLSTATE CZ404: no such run; CZ403: the sender may not answer this kind of wait; CZ409: the run waits for another key,
-- its wait timed out, or it has ended. Nothing changed.
CREATE OR REPLACE FUNCTION "public".signal_run(
    p_thread_id uuid, p_run_id text, p_key text, p_payload json, p_may_answer text[], p_signal_id text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_known record;
BEGIN
    SELECT * INTO v_run FROM "public".lock_run(p_thread_id, p_run_id, NULL, NULL);
    SELECT source, may_answer, signal_id, used_at INTO v_known FROM "public".run_signals
     WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
    IF v_known.signal_id = p_signal_id THEN
        RETURN CASE WHEN v_known.used_at IS NULL THEN 'kept' ELSE 'resumed' END;
    ELSIF v_known.source = 'timeout' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('the signal %s comes too late: the wait of run %s timed out', p_key, p_run_id);
    ELSIF v_known.used_at IS NOT NULL
          -- A kept signal that left a wait for its own key open may not answer that wait.
          OR v_known.source IS NOT NULL AND NOT (v_run.status = 'waiting' AND v_run.wait_key = p_key)
             AND (v_known.may_answer IS NULL OR v_known.may_answer @> p_may_answer) THEN
        RETURN 'duplicate';
    END IF;
    IF v_run.status IN ('completed', 'failed', 'cancelled') THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s is %s and takes no signals', p_run_id, v_run.status);
    END IF;
    IF v_run.status = 'waiting' THEN
        IF NOT v_run.wait_kind = ANY (p_may_answer) THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ403',
                MESSAGE = format('run %s waits for a %s; the caller may only answer a wait of kind %s', p_run_id,
                                 v_run.wait_kind, array_to_string(p_may_answer, ' or '));
        END IF;
        IF v_run.wait_key <> p_key THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ409',
                MESSAGE = format('run %s does not wait for %s; send the correlation key of its wait', p_run_id, p_key);
        END IF;
        IF v_run.wait_expires_at <= clock_timestamp() THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ409',
                MESSAGE = format('the signal %s comes too late: the wait of run %s timed out', p_key, p_run_id);
        END IF;
        PERFORM "public".resolve_wait(p_thread_id, p_run_id, 'signal', p_payload, p_may_answer, p_signal_id);
        RETURN 'resumed';
    END IF;
    INSERT INTO "public".run_signals (
        thread_id, run_id, correlation_key, app_name, source, payload, may_answer, signal_id)
    VALUES (p_thread_id, p_run_id, p_key, v_run.app_name, 'signal', p_payload, p_may_answer, p_signal_id)
    ON CONFLICT (thread_id, run_id, md5(correlation_key)) DO UPDATE
       SET payload = excluded.payload, may_answer = excluded.may_answer, signal_id = excluded.signal_id;
    RETURN 'kept';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/signal_run.sql', 0, '15316ee0adbb2e2d948352013f9bf3da490e1655ef7deb9d49af23adb85a1b65', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- runs/wait_run.sql
-- Make a running run wait, with its event. Answers:
--   waiting   it waits and has no lease
--   resolved  a kept signal ends the wait; with p_suspend the run is pending again, else it stays running. A kept signal
--             ends only a wait of a kind that its sender may answer
-- A wait for a message is answered by what the user says after the run's own last message, else after its beginning.
-- SQLSTATE CZ404, CZ423: the attempt does not hold the run; CZ409: this key has ended a wait of the run before.
CREATE OR REPLACE FUNCTION "public".wait_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_kind text, p_key text, p_reason text,
    p_expires_at timestamptz, p_timeout_node text, p_context json, p_suspend boolean, p_event_id text, p_content json
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_early record;
    v_after bigint;
BEGIN
    PERFORM "public".lock_run(p_thread_id, p_run_id, p_attempt, 'waiting');
    SELECT source, payload, may_answer, signal_id, used_at,
           may_answer IS NULL OR p_kind = ANY (may_answer) AS is_usable
      INTO v_early FROM "public".run_signals
     WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
    IF v_early.is_usable AND NOT p_suspend THEN
        UPDATE "public".run_signals SET used_at = coalesce(used_at, clock_timestamp())
         WHERE thread_id = p_thread_id AND run_id = p_run_id AND md5(correlation_key) = md5(p_key);
        RETURN 'resolved';
    END IF;
    IF v_early.used_at IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s has waited for %s before; give every wait a key of its own', p_run_id, p_key);
    END IF;
    IF p_kind = 'message' THEN
        SELECT greatest(max(sequence_num) FILTER (WHERE event_type IN ('assistant_message', 'message')),
                        min(sequence_num),
                        max((SELECT max((s.payload ->> 'sequence_num')::bigint) FROM "public".run_signals s
                              WHERE s.thread_id = p_thread_id AND s.run_id = p_run_id AND s.source = 'message')))
          INTO v_after
          FROM "public".events e WHERE e.run_id = p_run_id AND e.thread_id = p_thread_id;
    END IF;
    UPDATE "public".runs
       SET status = 'waiting', available_at = NULL, lease_expires_at = NULL, wait_kind = p_kind, wait_key = p_key,
           waiting_since = clock_timestamp(), wait_reason = p_reason, wait_expires_at = p_expires_at, wait_timeout_node = p_timeout_node, wait_after = v_after,
           resumption_context = p_context, failures = 0
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM "public".append_run_event(p_thread_id, p_run_id, p_event_id, 'run_waiting', p_content);
    IF v_early.is_usable THEN
        PERFORM "public".resolve_wait(
            p_thread_id, p_run_id, v_early.source, v_early.payload, v_early.may_answer, v_early.signal_id);
        RETURN 'resolved';
    END IF;
    RETURN 'waiting';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('runs/wait_run.sql', 0, '908fd8e5398bda5645aaf47343aaa90e5b2f76836705eba83d1c455866a73881', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- schedules/fire_schedule.sql
-- Fire a schedule: create a run for each of p_due_at, with its event, and move the schedule to p_next_at, in one transaction.
-- It changes nothing and returns no rows when the schedule is paused or deleted, when another process fires it now, or when its
-- next time is not p_expected: another process has fired it. p_thread_ids are the ids of the sessions that are created; they
-- are not used by a schedule with a thread.
CREATE OR REPLACE FUNCTION "public".fire_schedule(
    p_schedule_id uuid, p_expected timestamptz, p_next_at timestamptz, p_due_at timestamptz[], p_thread_ids uuid[],
    p_run_ids text[]
) RETURNS TABLE (thread_id uuid, run_id text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_schedule "public".schedules;
    v_place integer;
BEGIN
    -- The thread is locked before the schedule, as by a deletion of the thread.
    PERFORM FROM "public".threads t
      WHERE t.id = (SELECT s.thread_id FROM "public".schedules s WHERE s.id = p_schedule_id) FOR NO KEY UPDATE;
    SELECT * INTO v_schedule FROM "public".schedules s
     WHERE s.id = p_schedule_id AND s.next_at = p_expected AND s.paused_at IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE "public".schedules s SET next_at = p_next_at WHERE s.id = p_schedule_id;
    FOR v_place IN 1 .. coalesce(cardinality(p_due_at), 0) LOOP
        thread_id := v_schedule.thread_id;
        run_id := p_run_ids[v_place];
        IF thread_id IS NULL THEN
            thread_id := p_thread_ids[v_place];
            PERFORM "public".create_sessions(
                ARRAY[thread_id], ARRAY[v_schedule.app_name], ARRAY[v_schedule.user_id], ARRAY[thread_id::text],
                ARRAY[v_schedule.name], NULL, NULL, NULL, NULL, 2147483647);
        END IF;
        PERFORM "public".create_run(
            thread_id, run_id, 'pending', v_schedule.handler, v_schedule.input, v_schedule.max_attempts, NULL, NULL, NULL,
            gen_random_uuid()::text,
            json_build_object('run_id', run_id, 'status', 'pending', 'handler', v_schedule.handler,
                              'schedule_id', v_schedule.id, 'due_at', p_due_at[v_place]),
            v_schedule.queue, v_schedule.priority);
        INSERT INTO "public".schedule_firings (schedule_id, due_at, app_name, thread_id, run_id)
        VALUES (v_schedule.id, p_due_at[v_place], v_schedule.app_name, thread_id, run_id);
        RETURN NEXT;
    END LOOP;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('schedules/fire_schedule.sql', 0, 'd8807b3855400502c1f56b70c7142835fea9c2007eb7a9379c7a42b75a243e3f', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- sessions/change_session.sql
-- Sets the title (null: unchanged, empty: removed) and merges metadata (null: unchanged), with an event. Returns null if the
-- thread does not exist.
CREATE OR REPLACE FUNCTION "public".change_session(
    p_thread_id uuid, p_title text, p_metadata jsonb, p_event_id text, p_content json
) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    UPDATE "public".threads
       SET title = CASE WHEN p_title IS NULL THEN title ELSE nullif(p_title, '') END,
           metadata = CASE WHEN p_metadata IS NULL THEN metadata ELSE "public".merge_state(metadata, p_metadata) END,
           updated_at = clock_timestamp()
     WHERE id = p_thread_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM "public".append_event(
        p_thread_id, p_event_id, NULL, '', 'system',
        CASE WHEN p_title IS NULL THEN 'metadata_updated' ELSE 'title_updated' END, p_content, '{}');
    RETURN p_thread_id;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('sessions/change_session.sql', 0, 'a8728826cd5f69d0484bfe1ceae2e1921f94f2b07a00891a4818cb050aea4c1d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- sessions/create_sessions.sql
-- Creates a batch of sessions in one transaction. Returns the status of each item in the order given: `created`, or `exists`
-- if the session id is taken. A null array is an array of nulls. Deltas of wider scopes are merged into what is there: concurrent creates lose
-- nothing. Sent again after a lost answer, it finds its own sessions and answers `created` as before.
CREATE OR REPLACE FUNCTION "public".create_sessions(
    p_thread_ids uuid[],
    p_app_names text[],
    p_user_ids text[],
    p_session_ids text[],
    p_titles text[],
    p_metadata text[],
    p_states text[],
    p_user_deltas text[],
    p_app_deltas text[],
    p_max_state_bytes integer
) RETURNS TABLE (status text, thread_id uuid, created_at timestamptz, user_state text, app_state text,
                 user_version bigint, app_version bigint)
LANGUAGE plpgsql
-- One plan, made once, maybe while the tables are empty: it must be one that stays good when they have grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_created uuid[];
    v_has_wider boolean := cardinality(array_remove(p_user_deltas, NULL)) > 0
                        OR cardinality(array_remove(p_app_deltas, NULL)) > 0;
    v_item record;
    v_now timestamptz;
    v_numbers bigint[];
BEGIN
    IF v_has_wider THEN
        PERFORM "public".lock_scopes(
            ARRAY(SELECT generate_series(1, cardinality(p_thread_ids))), p_app_names, p_user_ids, p_user_deltas,
            p_app_deltas);
    END IF;
    -- A session and its writes to wider scopes have one number, so each session sees the writes of those before it.
    v_numbers := ARRAY(SELECT nextval('"public".write_numbers') FROM generate_series(1, cardinality(p_thread_ids)));
    v_now := clock_timestamp();
    WITH created AS (
        INSERT INTO "public".threads (id, app_name, user_id, session_id, title, metadata, state, is_as_created, began_at,
                                      created_at, updated_at, began_number)
        SELECT item.thread_id, item.app_name, item.user_id, item.session_id, item.title, coalesce(item.metadata, '{}')::jsonb,
               coalesce(item.state, '{}')::jsonb, item.state IS NOT NULL, moment.at, moment.at, moment.at,
               v_numbers[item.place]
          FROM unnest(p_thread_ids, p_app_names, p_user_ids, p_session_ids, p_titles, p_metadata, p_states)
               WITH ORDINALITY AS item (thread_id, app_name, user_id, session_id, title, metadata, state, place)
         CROSS JOIN LATERAL (SELECT v_now + item.place * interval '1 microsecond' AS at) AS moment
        ON CONFLICT (app_name, user_id, md5(session_id)) DO NOTHING
        RETURNING id, pg_column_size(state) AS size
    )
    SELECT array_agg(id), "public".refuse_large_state('session', max(size), p_max_state_bytes)
      INTO v_created
      FROM created;

    IF v_has_wider THEN
        FOR v_item IN
            SELECT item.*, v_now + item.place * interval '1 microsecond' AS at
              FROM unnest(p_thread_ids, p_app_names, p_user_ids, p_user_deltas, p_app_deltas)
                   WITH ORDINALITY AS item (thread_id, app_name, user_id, user_delta, app_delta, place)
             WHERE item.thread_id = ANY (v_created)
             ORDER BY item.place
        LOOP
            IF v_item.user_delta IS NOT NULL THEN
                PERFORM "public".merge_user_state(v_item.app_name, v_item.user_id, v_item.user_delta::jsonb,
                                                  v_item.thread_id, 0, v_item.at, p_max_state_bytes,
                                                  v_numbers[v_item.place]);
            END IF;
            IF v_item.app_delta IS NOT NULL THEN
                PERFORM "public".merge_app_state(v_item.app_name, v_item.app_delta::jsonb, v_item.thread_id, 0,
                                                 v_item.at, p_max_state_bytes, v_numbers[v_item.place]);
            END IF;
        END LOOP;
    END IF;

    RETURN QUERY
    SELECT CASE WHEN found.id IS NULL THEN 'created' ELSE 'exists' END, coalesce(found.id, item.thread_id),
           coalesce(found.created_at, v_now + item.place * interval '1 microsecond'),
           u.state::text, a.state::text, u.version, a.version
      FROM unnest(p_thread_ids, p_app_names, p_user_ids, p_session_ids)
           WITH ORDINALITY AS item (thread_id, app_name, user_id, session_id, place)
      LEFT JOIN "public".threads found
        ON NOT item.thread_id = ANY (coalesce(v_created, '{}')) AND found.app_name = item.app_name
       AND found.user_id = item.user_id AND md5(found.session_id) = md5(item.session_id)
      LEFT JOIN "public".user_states u ON u.user_id = item.user_id AND u.app_name = item.app_name
      LEFT JOIN "public".app_states a ON a.app_name = item.app_name
     ORDER BY item.place;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('sessions/create_sessions.sql', 0, 'b98953f69ea528e922fb0ad7febf0648b05e9d7f280c2dc8411dc5e4b2ecb2d9', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- sessions/fill_thread_defaults.sql
-- Trigger: the default of the session id is the id of the thread.
CREATE OR REPLACE FUNCTION "public".fill_thread_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.session_id := NEW.id::text;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_thread_defaults
    BEFORE INSERT ON "public".threads
    FOR EACH ROW WHEN (NEW.session_id IS NULL)
    EXECUTE FUNCTION "public".fill_thread_defaults();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('sessions/fill_thread_defaults.sql', 0, 'a71499b6cec73de97fa2c9f5537c46136515d153ac59337027ec3db26505b09d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- sessions/fork_session.sql
-- Creates a session with the past of another one up to an event: copies of its events, messages and versions. Without
-- p_state the state is the present one of the source. Returns null if the thread does not exist.
CREATE OR REPLACE FUNCTION "public".fork_session(
    p_source uuid, p_thread_id uuid, p_session_id text, p_at_sequence bigint, p_state jsonb, p_version bigint,
    OUT status text, OUT thread_id uuid
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_source record;
BEGIN
    SELECT * INTO v_source FROM "public".threads WHERE id = p_source FOR SHARE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    INSERT INTO "public".threads (id, app_name, user_id, session_id, title, metadata, state, version, last_sequence,
                                  is_as_created, began_at, began_number)
    VALUES (p_thread_id, v_source.app_name, v_source.user_id, p_session_id, v_source.title,
            v_source.metadata || jsonb_build_object('forked_from', p_source, 'forked_at',
                                                    coalesce(p_at_sequence, v_source.last_sequence)),
            coalesce(p_state, v_source.state), coalesce(p_version, v_source.version),
            coalesce(p_at_sequence, v_source.last_sequence), v_source.is_as_created, v_source.began_at,
            v_source.began_number)
    ON CONFLICT (app_name, user_id, md5(session_id)) DO NOTHING
    RETURNING id INTO fork_session.thread_id;
    IF NOT FOUND THEN
        status := 'exists';
        RETURN;
    END IF;
    INSERT INTO "public".events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at, write_number)
    SELECT p_thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type, content, actions,
           version, changes_state, created_at, write_number
      FROM "public".events
     WHERE thread_id = p_source AND sequence_num <= coalesce(p_at_sequence, v_source.last_sequence);
    INSERT INTO "public".messages (thread_id, sequence_num, id, event_id, app_name, role, content, metadata,
                                   created_at)
    SELECT p_thread_id, sequence_num, id, event_id, app_name, role, content, metadata, created_at
      FROM "public".messages
     WHERE thread_id = p_source AND sequence_num <= coalesce(p_at_sequence, v_source.last_sequence);
    INSERT INTO "public".snapshots (thread_id, version, sequence_num, app_name, state, events_summary, created_at)
    SELECT p_thread_id, version, sequence_num, app_name, state, events_summary, created_at
      FROM "public".snapshots
     WHERE thread_id = p_source AND sequence_num <= coalesce(p_at_sequence, v_source.last_sequence);
    INSERT INTO "public".branches (thread_id, number, app_name, name, parent, forked_at, created_at, deleted_at,
                                   write_number)
    SELECT p_thread_id, b.number, b.app_name, b.name, b.parent, b.forked_at, b.created_at, b.deleted_at, b.write_number
      FROM "public".branches b
     WHERE b.thread_id = p_source
       AND (p_at_sequence IS NULL
            OR (SELECT "public".is_written_by(b.write_number, b.created_at, e.write_number, e.created_at)
                  FROM "public".events e WHERE e.thread_id = p_source AND e.sequence_num = p_at_sequence));
    INSERT INTO "public".branch_segments (thread_id, from_sequence, app_name, branch)
    SELECT p_thread_id, from_sequence, app_name, branch
      FROM "public".branch_segments
     WHERE thread_id = p_source AND from_sequence <= coalesce(p_at_sequence, v_source.last_sequence);
    -- The fork has the artifacts of its past and shares their bytes, unless these are being deleted.
    INSERT INTO "public".artifacts (id, app_name, user_id, session_id, filename, version, blob_id, mime_type, size, sha256,
                                    metadata, attributes, created_at)
    SELECT gen_random_uuid(), a.app_name, a.user_id, p_session_id, a.filename, a.version, a.blob_id, a.mime_type, a.size,
           a.sha256, a.metadata, a.attributes, a.created_at
      FROM "public".artifacts a
      JOIN "public".artifact_blobs b ON b.id = a.blob_id AND b.delete_after IS NULL
     WHERE a.app_name = v_source.app_name AND a.user_id = v_source.user_id
       AND md5(coalesce(a.session_id, '')) = md5(v_source.session_id) AND a.session_id = v_source.session_id
       AND (p_at_sequence IS NULL
            OR a.created_at <= (SELECT e.created_at FROM "public".events e
                                 WHERE e.thread_id = p_source AND e.sequence_num = p_at_sequence))
       FOR SHARE OF b;
    INSERT INTO "public".hidden_events (thread_id, branch, write_number, app_name, first_sequence, last_sequence)
    SELECT p_thread_id, h.branch, h.write_number, h.app_name, h.first_sequence, h.last_sequence
      FROM "public".hidden_events h
     WHERE h.thread_id = p_source
       AND (p_at_sequence IS NULL
            OR h.write_number < (SELECT e.write_number FROM "public".events e
                                  WHERE e.thread_id = p_source AND e.sequence_num = p_at_sequence));
    status := 'created';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('sessions/fork_session.sql', 0, '631f52820dbfd06c60a895d6bc364daeca5c3f3475a2c07da5752ecdbfc741fb', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- sessions/slots.sql
-- Returns the slot of a user's threads, 0 to 1023; `cognizes.engine.models.user_slot` computes the same.
CREATE OR REPLACE FUNCTION "public".user_slot(p_app_name text, p_user_id text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (('x' || left(md5(length(p_app_name) || ':' || p_app_name || p_user_id), 8))::bit(32)::bigint & 1023)::integer
$$;

-- Returns the slot that a thread id carries; null for ids of older versions and of threads inserted in SQL, which are not of
-- version 8. The ten bits after the version are the slot.
CREATE OR REPLACE FUNCTION "public".slot_of(p_thread_id uuid) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN get_byte(uuid_send(p_thread_id), 6) >> 4 = 8
                THEN ((get_byte(uuid_send(p_thread_id), 6) & 15) << 6) | (get_byte(uuid_send(p_thread_id), 7) >> 2) END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('sessions/slots.sql', 0, '8b04619e8a6455e40992fa6948809ab5f967cd276ee72e7d63e685c0b8902788', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- sessions/update_updated_at.sql
-- Trigger: sets `updated_at` for an UPDATE in psql. Statements of the engine set it and do not fire it.
CREATE OR REPLACE FUNCTION "public".update_updated_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER update_updated_at
    BEFORE UPDATE ON "public".threads
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at)
    EXECUTE FUNCTION "public".update_updated_at();

CREATE OR REPLACE TRIGGER update_updated_at
    BEFORE UPDATE ON "public".user_states
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at)
    EXECUTE FUNCTION "public".update_updated_at();

CREATE OR REPLACE TRIGGER update_updated_at
    BEFORE UPDATE ON "public".app_states
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at)
    EXECUTE FUNCTION "public".update_updated_at();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('sessions/update_updated_at.sql', 0, '035112d9d6bc5572b21792705e9346690d212bd7865d0e5732dbe0b06496452d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- snapshots/fill_snapshot_defaults.sql
-- Trigger: an INSERT in psql needs only a thread. Without a version the snapshot has the thread's present version and state.
-- The sequence number is that of the last event at its version.
CREATE OR REPLACE FUNCTION "public".fill_snapshot_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_thread record;
BEGIN
    SELECT app_name, version, last_sequence, state INTO v_thread
      FROM "public".threads WHERE id = NEW.thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    NEW.app_name := v_thread.app_name;
    NEW.version := coalesce(NEW.version, v_thread.version);
    IF NEW.version > v_thread.version THEN
        RAISE check_violation USING
            MESSAGE = format('version %s does not exist; the thread is at %s', NEW.version, v_thread.version);
    END IF;
    IF NEW.version = v_thread.version THEN
        NEW.sequence_num := v_thread.last_sequence;
        NEW.state := coalesce(NEW.state, v_thread.state);
    ELSE
        NEW.sequence_num := coalesce((SELECT max(e.sequence_num) FROM "public".events e
                                       WHERE e.thread_id = NEW.thread_id AND e.version <= NEW.version), 0);
    END IF;
    IF NEW.events_summary = '{}' THEN
        NEW.events_summary := jsonb_build_object('events', NEW.sequence_num);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_snapshot_defaults
    BEFORE INSERT ON "public".snapshots
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION "public".fill_snapshot_defaults();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('snapshots/fill_snapshot_defaults.sql', 0, 'f15cb88983bb851dcda7ff77f0c501c60b24b1604b4cc03402ff0f5cfadc5265', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- snapshots/prune_snapshots.sql
-- Deletes snapshots except the newest of every thread and that of sequence 0. Returns the number of deleted rows. Skips rows
-- that another transaction locks, so that two deletions cannot deadlock.
CREATE OR REPLACE FUNCTION "public".prune_snapshots(p_keep integer) RETURNS bigint LANGUAGE sql AS $$
    WITH ranked AS (
        SELECT thread_id, version, row_number() OVER (PARTITION BY thread_id ORDER BY version DESC) AS place
          FROM "public".snapshots WHERE sequence_num > 0
    ), old AS (
        SELECT s.thread_id, s.version FROM "public".snapshots s
          JOIN ranked r ON r.thread_id = s.thread_id AND r.version = s.version
         WHERE r.place > p_keep
         ORDER BY s.thread_id, s.version
           FOR UPDATE OF s SKIP LOCKED
    ), gone AS (
        DELETE FROM "public".snapshots s USING old
         WHERE s.thread_id = old.thread_id AND s.version = old.version
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('snapshots/prune_snapshots.sql', 0, 'c21826bf9ea34314dfee26dd577f99f954ab2fc685d4cec9e72819a6725ec648', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- snapshots/snapshot_initial_states.sql
-- Stores the state that sessions were created with as the snapshot of sequence 0, before their state changes for the first time.
-- The caller changes the state in the same transaction and sets `is_as_created`, which means "initial state unchanged", to false.
CREATE OR REPLACE FUNCTION "public".snapshot_initial_states(p_thread_ids uuid[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO "public".snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, 1, 0, app_name, state, '{"events": 0}'
      FROM "public".threads
     WHERE id = ANY (p_thread_ids) AND is_as_created
    ON CONFLICT (thread_id, version) DO NOTHING
$$;

-- Trigger: the same for an UPDATE in psql. Statements of the engine set `updated_at` and do not fire it.
CREATE OR REPLACE FUNCTION "public".snapshot_initial_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM "public".snapshot_initial_states(ARRAY[OLD.id]);
    NEW.is_as_created := false;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER snapshot_initial_state
    BEFORE UPDATE ON "public".threads
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at AND OLD.is_as_created AND NEW.state <> OLD.state)
    EXECUTE FUNCTION "public".snapshot_initial_state();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('snapshots/snapshot_initial_states.sql', 0, 'd79763465a9b8c37d9d1d84e9d74d7403c69c21816f4e5120a9f8bd9b6e3807d', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- snapshots/take_snapshot.sql
-- Stores the present state of a session as a snapshot, once per version. Returns the version.
CREATE OR REPLACE FUNCTION "public".take_snapshot(p_thread_id uuid) RETURNS bigint LANGUAGE sql AS $$
    -- An unchanged initial state is stored as the snapshot of sequence 0, which is never pruned.
    INSERT INTO "public".snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, 1, 0, app_name, state, '{"events": 0}'
      FROM "public".threads
     WHERE id = p_thread_id AND is_as_created
    ON CONFLICT (thread_id, version) DO NOTHING;
    INSERT INTO "public".snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, version, last_sequence, app_name, state, jsonb_build_object('events', last_sequence)
      FROM "public".threads
     WHERE id = p_thread_id
    ON CONFLICT (thread_id, version) DO NOTHING;
    SELECT version FROM "public".threads WHERE id = p_thread_id;
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('snapshots/take_snapshot.sql', 0, '6aa9d45b7c2dba83c56444ed076c4a18053943704b0cb6f593d4d5cde02704f5', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/fold_state_writes.sql
-- Folds the writes to a user's or an app's state that are older than p_age into the newest of them, which then holds the whole
-- state as of that write (`is_folded`). Later states can still be read; earlier ones have expired, see `read_past`.
-- The state itself, snapshots and events do not change. Reads up to p_limit writes of a scope. Returns the number of deleted rows.
CREATE OR REPLACE FUNCTION "public".fold_state_writes(p_age interval, p_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_scope record;
    v_write record;
    v_state jsonb;
    v_last bigint;
    v_gone bigint := 0;
    v_count bigint;
BEGIN
    FOR v_scope IN
        SELECT app_name, scope, user_id FROM "public".state_writes
         WHERE created_at < now() - p_age
         GROUP BY app_name, scope, user_id HAVING count(*) > 1
         LIMIT 100
    LOOP
        v_state := '{}';
        v_last := NULL;
        -- In the order of versions, the order in which the writes were applied. The row locks keep a second call out.
        FOR v_write IN
            SELECT version, delta, created_at FROM "public".state_writes
             WHERE app_name = v_scope.app_name AND scope = v_scope.scope AND user_id = v_scope.user_id
             ORDER BY version LIMIT p_limit FOR UPDATE
        LOOP
            EXIT WHEN v_write.created_at >= now() - p_age;
            v_state := "public".merge_state(v_state, v_write.delta);
            v_last := v_write.version;
        END LOOP;
        DELETE FROM "public".state_writes
         WHERE app_name = v_scope.app_name AND scope = v_scope.scope AND user_id = v_scope.user_id AND version < v_last;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count > 0 THEN
            UPDATE "public".state_writes
               SET delta = v_state, is_folded = true, thread_id = NULL, sequence_num = NULL
             WHERE app_name = v_scope.app_name AND scope = v_scope.scope AND user_id = v_scope.user_id
               AND version = v_last;
        END IF;
        v_gone := v_gone + v_count;
        EXIT WHEN v_gone >= p_limit;
    END LOOP;
    RETURN v_gone;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/fold_state_writes.sql', 0, 'e0b4d9256e999d34ac470da7bc9899c4d6f1eba02a03894ac5b3ad7af3b856bd', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/import_states.sql
-- Adds the missing keys of an app's state.
CREATE OR REPLACE FUNCTION "public".import_app_state(p_app_name text, p_state jsonb, p_max_bytes integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM "public".lock_scopes(ARRAY[1], ARRAY[p_app_name], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY['{}']);
    PERFORM "public".merge_app_state(
        p_app_name, p_state - ARRAY(SELECT jsonb_object_keys(s.state)), NULL, NULL, clock_timestamp(), p_max_bytes)
       FROM "public".app_states s
      WHERE s.app_name = p_app_name AND p_state - ARRAY(SELECT jsonb_object_keys(s.state)) <> '{}';
END
$$;

-- Adds the missing keys of a user's state.
CREATE OR REPLACE FUNCTION "public".import_user_state(
    p_app_name text, p_user_id text, p_state jsonb, p_max_bytes integer
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM "public".lock_scopes(ARRAY[1], ARRAY[p_app_name], ARRAY[p_user_id], ARRAY['{}'], ARRAY[NULL::text]);
    PERFORM "public".merge_user_state(
        p_app_name, p_user_id, p_state - ARRAY(SELECT jsonb_object_keys(s.state)), NULL, NULL, clock_timestamp(),
        p_max_bytes)
       FROM "public".user_states s
      WHERE s.app_name = p_app_name AND s.user_id = p_user_id
        AND p_state - ARRAY(SELECT jsonb_object_keys(s.state)) <> '{}';
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/import_states.sql', 0, '475d6a5c8f864422cba58dbefb9a60002acc8421387d783fd6c1fb3d764e2c29', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/is_written_by.sql
-- Returns whether a write precedes an event. Write numbers decide; a row without a number is older than write numbers, or
-- imported, and precedes every row that has one. Two such rows are compared by their timestamps.
CREATE OR REPLACE FUNCTION "public".is_written_by(
    p_write_number bigint, p_written_at timestamptz, p_event_number bigint, p_event_at timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN p_event_number IS NOT NULL THEN coalesce(p_write_number <= p_event_number, true)
        WHEN p_write_number IS NOT NULL THEN false
        ELSE p_written_at <= p_event_at
    END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/is_written_by.sql', 0, '5619a55faa3291abe9901bf3db0d45faef39bde130ec8ddd2ef67ba6aa58f1bd', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/lock_scopes.sql
-- Locks the user and app states that a batch will change, and creates missing ones: users before apps, each in the order of
-- their keys. Item i belongs to the app p_app_names[p_index[i]] and the user p_user_ids[p_index[i]].
-- A write number taken after this is higher than that of every earlier write to those states: time travel relies on it.
CREATE OR REPLACE FUNCTION "public".lock_scopes(
    p_index integer[], p_app_names text[], p_user_ids text[], p_user_deltas text[], p_app_deltas text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(array_remove(p_user_deltas, NULL)) > 0 THEN
        INSERT INTO "public".user_states (user_id, app_name)
        SELECT DISTINCT p_user_ids[item.owner], p_app_names[item.owner]
          FROM unnest(p_index, p_user_deltas) AS item (owner, delta)
         WHERE item.delta IS NOT NULL AND p_user_ids[item.owner] IS NOT NULL
         ORDER BY 1, 2
        ON CONFLICT DO NOTHING;
        PERFORM FROM "public".user_states s
          WHERE (s.user_id, s.app_name) IN (
                SELECT p_user_ids[item.owner], p_app_names[item.owner]
                  FROM unnest(p_index, p_user_deltas) AS item (owner, delta) WHERE item.delta IS NOT NULL)
          ORDER BY s.user_id, s.app_name FOR UPDATE;
    END IF;
    IF cardinality(array_remove(p_app_deltas, NULL)) > 0 THEN
        INSERT INTO "public".app_states (app_name)
        SELECT DISTINCT p_app_names[item.owner]
          FROM unnest(p_index, p_app_deltas) AS item (owner, delta)
         WHERE item.delta IS NOT NULL AND p_app_names[item.owner] IS NOT NULL
         ORDER BY 1
        ON CONFLICT DO NOTHING;
        PERFORM FROM "public".app_states s
          WHERE s.app_name IN (
                SELECT p_app_names[item.owner]
                  FROM unnest(p_index, p_app_deltas) AS item (owner, delta) WHERE item.delta IS NOT NULL)
          ORDER BY s.app_name FOR UPDATE;
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/lock_scopes.sql', 0, '4d673501b4d0b9bdc320d1c5a6136ff3fe4f17f5cd505ac82066022dc44a8182', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/merge_app_state.sql
-- Applies a delta to an app's state and records it. The caller holds the lock that `lock_scopes` takes.
CREATE OR REPLACE FUNCTION "public".merge_app_state(
    p_app_name text, p_delta jsonb, p_thread_id uuid, p_sequence bigint, p_at timestamptz, p_max_bytes integer,
    p_write_number bigint DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_version bigint;
    v_size integer;
BEGIN
    UPDATE "public".app_states s
       SET state = "public".merge_state(s.state, p_delta), version = s.version + 1, updated_at = p_at
     WHERE s.app_name = p_app_name
    RETURNING s.version, pg_column_size(s.state) INTO v_version, v_size;
    PERFORM "public".refuse_large_state('app', v_size, p_max_bytes);
    INSERT INTO "public".state_writes (app_name, scope, user_id, version, delta, thread_id, sequence_num, created_at,
                                       write_number)
    VALUES (p_app_name, 'app', '', v_version, p_delta, p_thread_id, p_sequence, p_at,
            coalesce(p_write_number, nextval('"public".write_numbers')));
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/merge_app_state.sql', 0, '8b2196d022278a04bb0b878befc3d2853edfa7fffe51540b71b65cf829e3943e', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/merge_state.sql
-- Returns a state without the keys that a delta deletes.
CREATE OR REPLACE FUNCTION "public".delete_keys(p_state jsonb, p_delta jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state - ARRAY(SELECT key FROM jsonb_each(p_delta) WHERE value = '{"$delete": true}'::jsonb)
$$;

-- Returns a state after a delta: keys are replaced, never merged deeply; the value {"$delete": true} deletes a key.
-- PostgreSQL inlines this function, because it contains no subquery; a call would copy a large state once more.
CREATE OR REPLACE FUNCTION "public".merge_state(p_state jsonb, p_delta jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN position('"$delete"' IN p_delta::text) = 0 THEN p_state || p_delta
                ELSE "public".delete_keys(p_state || p_delta, p_delta) END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/merge_state.sql', 0, '0c84112d54f11357832002f0f4354b5797a8362b53f7eb607541fe39ea63fbef', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/merge_user_state.sql
-- Applies a delta to a user's state and records it. The caller holds the lock that `lock_scopes` takes.
CREATE OR REPLACE FUNCTION "public".merge_user_state(
    p_app_name text, p_user_id text, p_delta jsonb, p_thread_id uuid, p_sequence bigint, p_at timestamptz,
    p_max_bytes integer, p_write_number bigint DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_version bigint;
    v_size integer;
BEGIN
    UPDATE "public".user_states s
       SET state = "public".merge_state(s.state, p_delta), version = s.version + 1, updated_at = p_at
     WHERE s.user_id = p_user_id AND s.app_name = p_app_name
    RETURNING s.version, pg_column_size(s.state) INTO v_version, v_size;
    PERFORM "public".refuse_large_state('user', v_size, p_max_bytes);
    INSERT INTO "public".state_writes (app_name, scope, user_id, version, delta, thread_id, sequence_num, created_at,
                                       write_number)
    VALUES (p_app_name, 'user', p_user_id, v_version, p_delta, p_thread_id, p_sequence, p_at,
            coalesce(p_write_number, nextval('"public".write_numbers')));
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/merge_user_state.sql', 0, 'b3e9216900d58b45d248afd83b86f214669259c7c4120e3dcef78a3c192d8541', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/refuse_large_state.sql
-- Raises SQLSTATE CZ413 if a state exceeds its limit, which rolls the transaction back.
CREATE OR REPLACE FUNCTION "public".refuse_large_state(p_scope text, p_size integer, p_max_bytes integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_size > p_max_bytes THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ413', MESSAGE = format('%s state', p_scope),
            DETAIL = p_size::text, HINT = p_max_bytes::text;
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/refuse_large_state.sql', 0, '10adff0c5b5a2f12a5c10df84ddd31d494b32e5a6a2c5b2fb03d5886ffb5e931', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- state/scopes_changed.sql
-- Returns whether the version of a user's or an app's state differs from the one that a writer read; null is not compared.
CREATE OR REPLACE FUNCTION "public".scopes_changed(
    p_app_name text, p_user_id text, p_expected_user_version bigint, p_expected_app_version bigint
) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_expected_user_version <> coalesce(
               (SELECT version FROM "public".user_states WHERE user_id = p_user_id AND app_name = p_app_name), 0)
        OR p_expected_app_version <> coalesce(
               (SELECT version FROM "public".app_states WHERE app_name = p_app_name), 0)
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('state/scopes_changed.sql', 0, '8644b59c39e8974d118f759b3689d1dd71bcb5c79a872517990de90fcf16ec73', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/append_chunks.sql
-- Append to a stream without an owning process. The status is one of the following, with the stream's last sequence:
--   appended  the chunks follow the last one
--   known     the range begins before the end: the caller compares the texts
--   gap       the range begins after the end
--   ended     the stream is completed or interrupted
--   owned     a process owns the stream
--   missing   the stream does not exist
CREATE OR REPLACE FUNCTION "public".append_chunks(
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
      FROM "public".message_streams s
     WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    current_sequence := coalesce((
        SELECT max(c.sequence) FROM "public".message_chunks c
         WHERE c.thread_id = p_thread_id AND md5(c.message_id) = md5(p_message_id)), 0);
    status := CASE WHEN v_stream.status <> 'streaming' THEN 'ended'
                   WHEN v_stream.owner IS NOT NULL THEN 'owned'
                   WHEN p_first <= current_sequence THEN 'known'
                   WHEN p_first > current_sequence + 1 THEN 'gap'
                   ELSE 'appended' END;
    IF status IN ('appended', 'known') AND v_stream.lease_expires_at < clock_timestamp() + p_lease / 2 THEN
        UPDATE "public".message_streams SET lease_expires_at = clock_timestamp() + p_lease
         WHERE thread_id = p_thread_id AND md5(message_id) = md5(p_message_id);
    END IF;
    IF status = 'appended' AND p_last >= p_first THEN
        INSERT INTO "public".message_chunks (thread_id, message_id, app_name, first_sequence, sequence, delta, lengths)
        VALUES (p_thread_id, p_message_id, v_stream.app_name, p_first, p_last, p_delta, p_lengths);
        current_sequence := p_last;
        PERFORM "public".notify_stream(p_thread_id, p_message_id, p_last, 'streaming');
    END IF;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/append_chunks.sql', 0, '510415c81f800e8173cae010a12fd5e0f04489436963c7b256a5169d5fc6f582', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/end_stream.sql
-- End a stream: store the message and its event and update the stream's row in one transaction. The status is one of:
--   ended    it is completed or interrupted, now or before; `end_status` and `final_sequence` say how
--   stored   another component stored a message of this id, or the event of a tool call, and p_is_stored is false
--   moved    there are more chunks than p_final_sequence: read them and retry
--   lost     another process owns the stream
--   alive    p_only_expired is true, and the lease has not expired
--   missing  the stream does not exist
-- Without an event (p_event_type null) the stream ends and leaves no message.
CREATE OR REPLACE FUNCTION "public".end_stream(
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
    PERFORM FROM "public".threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT * INTO v_stream FROM "public".message_streams s
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
        SELECT max(c.sequence) FROM "public".message_chunks c
         WHERE c.thread_id = p_thread_id AND md5(c.message_id) = md5(p_message_id)) THEN
        status := 'moved';
    ELSIF NOT p_is_stored AND EXISTS (
        SELECT FROM "public".messages WHERE thread_id = p_thread_id AND md5(id) = md5(p_message_id)) THEN
        status := 'stored';
    -- A tool call is its own event, or a part of the event whose id precedes the infix. That event may have no calls: it
    -- is then the beginning of a text before the call.
    ELSIF NOT p_is_stored AND v_stream.role = 'call' AND EXISTS (
        SELECT FROM "public".events e
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
            SELECT FROM "public".events e WHERE e.thread_id = p_thread_id AND md5(e.id) = md5(p_message_id)
        ) THEN gen_random_uuid()::text ELSE v_stream.message_id END;
        SELECT a.status INTO v_answer FROM "public".append_event(
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
    UPDATE "public".message_streams s
       SET status = p_status, final_sequence = p_final_sequence, chunk_lengths = p_lengths, owner = NULL,
           lease_expires_at = NULL, ended_at = clock_timestamp()
     WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id);
    PERFORM "public".notify_stream(p_thread_id, p_message_id, p_final_sequence, p_status);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/end_stream.sql', 0, '14f96329ab1ec7ca45f2feaebf1afcf2bee90cff19756ee8683828918d5e93c6', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/flush_chunks.sql
-- `write_chunks` replaced it; servers of version 0.2.0 and earlier call it.
-- Write the new chunks of all streams of a process and notify once. Writing a range again changes nothing. Return the
-- places of the ranges whose predecessor is missing: PostgreSQL crashed and truncated the table, so the producer must
-- write its stream again from the start.
CREATE OR REPLACE FUNCTION "public".flush_chunks(
    p_threads uuid[], p_message_ids text[], p_app_names text[], p_firsts bigint[], p_lasts bigint[], p_deltas text[],
    p_lengths bytea[], p_payloads text[]
) RETURNS SETOF bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    -- A rewritten stream may have a range with the same end as an existing one: keep the longer range.
    INSERT INTO "public".message_chunks AS known (thread_id, message_id, app_name, first_sequence, sequence, delta, lengths)
    SELECT * FROM unnest(p_threads, p_message_ids, p_app_names, p_firsts, p_lasts, p_deltas, p_lengths)
    ON CONFLICT (thread_id, md5(message_id), sequence) DO UPDATE
        SET first_sequence = EXCLUDED.first_sequence, delta = EXCLUDED.delta, lengths = EXCLUDED.lengths
      WHERE EXCLUDED.first_sequence < known.first_sequence;
    PERFORM pg_notify('stream_moved', payload) FROM unnest(p_payloads) AS notification (payload);
    RETURN QUERY
    SELECT written.place
      FROM unnest(p_threads, p_message_ids, p_firsts) WITH ORDINALITY AS written (thread_id, message_id, first, place)
     WHERE written.first > 1 AND NOT EXISTS (
            SELECT FROM "public".message_chunks c
             WHERE c.thread_id = written.thread_id AND md5(c.message_id) = md5(written.message_id)
               AND c.sequence = written.first - 1);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/flush_chunks.sql', 0, '186eebee47b3b18976a9e3fa3b2c36da20caf39e4b278ef07d6054d05013bc4c', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/notify_stream.sql
-- Announce the last sequence and the status of a stream to all processes. The payload carries the digest of the message
-- id, because a payload is limited to 8000 bytes and an id is not.
CREATE OR REPLACE FUNCTION "public".notify_stream(p_thread_id uuid, p_message_id text, p_sequence bigint, p_status text)
RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('stream_moved', json_build_array(
        json_build_array(p_thread_id, md5(p_message_id), p_sequence, p_status))::text)
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/notify_stream.sql', 0, '83f5b4c0cf1ad82a353742fcd7a8ac754c618303bf865405144f4ec997773353', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/open_stream.sql
-- Open a stream for a new message. The status is one of:
--   opened   the stream is open; a process that retries because the first response was lost gets this too
--   reopened the stream is open; an earlier stream of this id was interrupted before its first chunk
--   taken    a stream, a message or an event of this id exists
--   missing  the thread does not exist
CREATE OR REPLACE FUNCTION "public".open_stream(
    p_thread_id uuid, p_message_id text, p_role text, p_author text, p_run_id text, p_invocation_id text, p_owner uuid,
    p_lease interval, OUT status text, OUT app_name text, OUT began_after bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- KEY SHARE keeps the thread from being deleted and does not block appends.
    SELECT t.app_name, t.last_sequence INTO app_name, began_after
      FROM "public".threads t WHERE t.id = p_thread_id FOR KEY SHARE;
    IF NOT FOUND THEN
        status := 'missing';
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM "public".messages WHERE thread_id = p_thread_id AND md5(id) = md5(p_message_id))
       OR EXISTS (SELECT FROM "public".events WHERE thread_id = p_thread_id AND md5(id) = md5(p_message_id)) THEN
        status := 'taken';
        RETURN;
    END IF;
    INSERT INTO "public".message_streams (thread_id, message_id, app_name, role, author, run_id, invocation_id, owner,
                                          lease_expires_at, began_after)
    VALUES (p_thread_id, p_message_id, open_stream.app_name, p_role, p_author, p_run_id, p_invocation_id, p_owner,
            clock_timestamp() + p_lease, open_stream.began_after)
    ON CONFLICT (thread_id, md5(message_id)) DO NOTHING;
    IF FOUND THEN
        status := 'opened';
    ELSIF EXISTS (
        SELECT FROM "public".message_streams s
         WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) AND s.message_id = p_message_id
           AND s.owner = p_owner AND s.status = 'streaming'
    ) THEN
        status := 'opened';
        RETURN;
    ELSE
        -- A stream that was interrupted before its first chunk stored nothing. Its former owner can neither end it, nor
        -- extend its lease, nor write chunks, because the row has another owner; this lock waits for the chunks that it
        -- is writing now. A stream that is still open is not taken over, even if its lease has expired: its chunks may
        -- be in Redis.
        PERFORM pg_advisory_xact_lock(hashtextextended('streams', 0));
        UPDATE "public".message_streams s
           SET role = p_role, author = p_author, run_id = p_run_id, invocation_id = p_invocation_id, owner = p_owner,
               status = 'streaming', lease_expires_at = clock_timestamp() + p_lease,
               began_after = open_stream.began_after, final_sequence = NULL, chunk_lengths = NULL,
               created_at = clock_timestamp(), ended_at = NULL
         WHERE s.thread_id = p_thread_id AND md5(s.message_id) = md5(p_message_id) AND s.message_id = p_message_id
           AND s.status = 'interrupted' AND s.final_sequence = 0
           AND NOT EXISTS (SELECT FROM "public".message_chunks c
                            WHERE c.thread_id = p_thread_id AND md5(c.message_id) = md5(p_message_id));
        status := CASE WHEN FOUND THEN 'reopened' ELSE 'taken' END;
        IF status = 'taken' THEN
            RETURN;
        END IF;
    END IF;
    PERFORM "public".notify_stream(p_thread_id, p_message_id, 0, 'streaming');
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/open_stream.sql', 0, '770158955a5aee8da47a3779484035dc65e43a3ebbb2f89807766c00168f59ae', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/prune_chunks.sql
-- Delete chunks older than an age, except those of open streams; finished messages have their whole text. Return the
-- number of deleted rows.
CREATE OR REPLACE FUNCTION "public".prune_chunks(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM "public".message_chunks c
         WHERE c.created_at < now() - p_age
           AND NOT EXISTS (SELECT FROM "public".message_streams s
                            WHERE s.thread_id = c.thread_id AND md5(s.message_id) = md5(c.message_id)
                              AND s.status = 'streaming')
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/prune_chunks.sql', 0, '57f2c6275d6c6aa87814183441ebf7c007ee85363274359c68a9121db62deedb', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/prune_streams.sql
-- Delete up to p_limit rows of streams that completed before an age: their messages are stored, and are then read like
-- messages that were never streamed. Interrupted streams stay: only their row says so. Return the number of deleted rows.
CREATE OR REPLACE FUNCTION "public".prune_streams(p_age interval, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH old AS (
        SELECT thread_id, message_id FROM "public".message_streams
         WHERE status = 'completed' AND ended_at < now() - p_age LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM "public".message_streams s USING old
         WHERE s.thread_id = old.thread_id AND md5(s.message_id) = md5(old.message_id) AND s.message_id = old.message_id
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/prune_streams.sql', 0, '0410c6dd6fb2f8f3677d7e15671d1641032a039c3ba2d0cfd7d7a447788c8bd9', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- streams/write_chunks.sql
-- Write the new chunks of all streams of a process and notify once. Writing a range again changes nothing. Return the
-- places of the ranges that a producer has to know of:
--   lost        the stream ended, or another process opened it again: nothing was written
--   incomplete  the predecessor is missing: PostgreSQL crashed and truncated the table, so the producer must write its
--               stream again from the start
CREATE OR REPLACE FUNCTION "public".write_chunks(
    p_threads uuid[], p_message_ids text[], p_owners uuid[], p_app_names text[], p_firsts bigint[], p_lasts bigint[],
    p_deltas text[], p_lengths bytea[], p_payloads text[]
) RETURNS TABLE (place bigint, refusal text) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_lost bigint[];
BEGIN
    -- open_stream waits for this lock before it opens a stream again: either it sees the chunks, or the owner differs.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('streams', 0));
    SELECT coalesce(array_agg(written.place), '{}') INTO v_lost
      FROM unnest(p_threads, p_message_ids, p_owners) WITH ORDINALITY AS written (thread_id, message_id, owner, place)
     WHERE NOT EXISTS (
            SELECT FROM "public".message_streams s
             WHERE s.thread_id = written.thread_id AND md5(s.message_id) = md5(written.message_id)
               AND s.status = 'streaming' AND s.owner IS NOT DISTINCT FROM written.owner);
    -- A rewritten stream may have a range with the same end as an existing one: keep the longer range.
    INSERT INTO "public".message_chunks AS known (thread_id, message_id, app_name, first_sequence, sequence, delta, lengths)
    SELECT thread_id, message_id, app_name, first, last, delta, lengths
      FROM unnest(p_threads, p_message_ids, p_app_names, p_firsts, p_lasts, p_deltas, p_lengths) WITH ORDINALITY
           AS written (thread_id, message_id, app_name, first, last, delta, lengths, place)
     WHERE place <> ALL (v_lost)
    ON CONFLICT (thread_id, md5(message_id), sequence) DO UPDATE
        SET first_sequence = EXCLUDED.first_sequence, delta = EXCLUDED.delta, lengths = EXCLUDED.lengths
      WHERE EXCLUDED.first_sequence < known.first_sequence;
    PERFORM pg_notify('stream_moved', payload) FROM unnest(p_payloads) AS notification (payload);
    RETURN QUERY
    SELECT lost.place, 'lost' FROM unnest(v_lost) AS lost (place)
    UNION ALL
    SELECT written.place, 'incomplete'
      FROM unnest(p_threads, p_message_ids, p_firsts) WITH ORDINALITY AS written (thread_id, message_id, first, place)
     WHERE written.first > 1 AND written.place <> ALL (v_lost) AND NOT EXISTS (
            SELECT FROM "public".message_chunks c
             WHERE c.thread_id = written.thread_id AND md5(c.message_id) = md5(written.message_id)
               AND c.sequence = written.first - 1);
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('streams/write_chunks.sql', 0, 'f40b50feb293c02d27dfa1a61eee81ebd7b70c4b65e30a9c0d9d888feafa3bbb', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- usage/record_usage.sql
-- Count the tokens of one call of a model, once per id and thread. Return false for a known id, or without the thread.
CREATE OR REPLACE FUNCTION "public".record_usage(
    p_thread_id uuid, p_id text, p_run_id text, p_usage json, p_created_at timestamptz DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO "public".token_usage (
        thread_id, id, app_name, user_id, run_id, model, input_tokens, output_tokens, cached_tokens, cache_write_tokens,
        reasoning_tokens, created_at)
    SELECT t.id, p_id, t.app_name, t.user_id, p_run_id, p_usage ->> 'model', (p_usage ->> 'input_tokens')::bigint,
           (p_usage ->> 'output_tokens')::bigint, (p_usage ->> 'cached_tokens')::bigint,
           (p_usage ->> 'cache_write_tokens')::bigint, (p_usage ->> 'reasoning_tokens')::bigint,
           coalesce(p_created_at, clock_timestamp())
      FROM "public".threads t WHERE t.id = p_thread_id
    ON CONFLICT (thread_id, md5(id)) DO NOTHING;
    RETURN FOUND;
END
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('usage/record_usage.sql', 0, '61066b243d70823c9e89fb443b5aae30626b61856736a33e43342235129003b9', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- webhooks/prune_dead_letters.sql
-- Delete deliveries that were given up before p_age. Return how many.
CREATE OR REPLACE FUNCTION "public".prune_dead_letters(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM "public".webhook_deliveries WHERE dead_at < now() - p_age RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('webhooks/prune_dead_letters.sql', 0, 'b9052a9861b780207845307e7bc20b2a58ec6b4a796d12074ca29987319304b1', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

-- webhooks/queue_webhooks.sql
-- Queue the calls of webhooks in the transaction that changes a run: it waits for a person, failed or completed.
CREATE OR REPLACE FUNCTION "public".queue_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO "public".webhook_deliveries (webhook_id, app_name, thread_id, run_id, event, payload)
    SELECT w.id, NEW.app_name, NEW.thread_id, NEW.id, NEW.status,
           json_build_object(
               'type', 'run.' || NEW.status,
               'timestamp', clock_timestamp(),
               'data', json_build_object(
                   'app_name', NEW.app_name, 'user_id', t.user_id, 'session_id', t.session_id, 'thread_id', NEW.thread_id,
                   'run_id', NEW.id, 'status', NEW.status, 'handler', NEW.handler, 'attempt', NEW.attempt,
                   'error', CASE WHEN NEW.status = 'failed' THEN NEW.error END,
                   'wait', CASE WHEN NEW.status = 'waiting' THEN json_build_object(
                       'kind', NEW.wait_kind, 'correlation_key', NEW.wait_key, 'reason', NEW.wait_reason,
                       'expires_at', NEW.wait_expires_at) END))
      FROM "public".webhooks w
      JOIN "public".threads t ON t.id = NEW.thread_id
     WHERE w.app_name = NEW.app_name AND NEW.status = ANY (w.events);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER queue_webhooks
    AFTER UPDATE OF status ON "public".runs
    FOR EACH ROW WHEN (OLD.status <> NEW.status
                       AND (NEW.status IN ('failed', 'completed') OR NEW.status = 'waiting' AND NEW.wait_kind = 'human'))
    EXECUTE FUNCTION "public".queue_webhooks();

INSERT INTO "public".schema_migrations (name, number, checksum, engine_version)
VALUES ('webhooks/queue_webhooks.sql', 0, '44ef5ce604edc38392e523dcdd04e386011d63dd5b9dc9fbc19a690843b0090a', '0.2.0')
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,
                                 applied_at = now();

UPDATE "public".schema_migrations SET revision = 63 WHERE number = 0;
COMMIT;
