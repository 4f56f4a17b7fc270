-- schedules: runs that are created at times of a cron expression in a time zone, or at an interval. `thread_id` is the thread of
-- all its runs; null: each run gets a session of its own. `next_at` is the next due time; a firing moves it forward.
CREATE TABLE IF NOT EXISTS {schema}.schedules (
    id              uuid PRIMARY KEY,
    app_name        text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id         text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    thread_id       uuid REFERENCES {schema}.threads (id) ON DELETE CASCADE,
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

CREATE UNIQUE INDEX IF NOT EXISTS schedules_name ON {schema}.schedules (app_name, user_id, name);
CREATE INDEX IF NOT EXISTS idx_schedules_next_at ON {schema}.schedules (next_at) WHERE paused_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_schedules_thread ON {schema}.schedules (thread_id) WHERE thread_id IS NOT NULL;

-- schedule_firings: one row for each due time for which a run was created. The primary key makes a second firing impossible.
-- A row is deleted with its run.
CREATE TABLE IF NOT EXISTS {schema}.schedule_firings (
    schedule_id  uuid NOT NULL REFERENCES {schema}.schedules (id) ON DELETE CASCADE,
    due_at       timestamptz NOT NULL,
    app_name     text NOT NULL,
    thread_id    uuid NOT NULL,
    run_id       text NOT NULL,
    fired_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, due_at),
    FOREIGN KEY (thread_id, run_id) REFERENCES {schema}.runs (thread_id, id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_schedule_firings_run ON {schema}.schedule_firings (thread_id, run_id);
