-- Runs that wait, die and go on: who executes them, what they wait for, the signals they got and the steps they took.

-- `handler` names who can execute the run; a run without one belongs to the process that started it.
-- `attempt` counts claims and fences writes, `failures` counts attempts that went wrong since the run last got on.
-- `wait_*` describe the present wait, or the last one; `resumption_context` is what the run wants back after it.
ALTER TABLE {schema}.runs
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

COMMENT ON COLUMN {schema}.runs.wait_after IS 'A wait for a message: what the user says after this event is the answer.';

CREATE INDEX IF NOT EXISTS idx_runs_claimable ON {schema}.runs (handler, created_at, id) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS idx_runs_leased ON {schema}.runs (lease_expires_at) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS idx_runs_expiring ON {schema}.runs (wait_expires_at) WHERE status = 'waiting';
CREATE INDEX IF NOT EXISTS idx_runs_listening ON {schema}.runs (thread_id)
    WHERE status = 'waiting' AND wait_kind = 'message';

-- run_signals: what ended a wait, or will: one for each correlation key of a run, however often it was sent.
CREATE TABLE IF NOT EXISTS {schema}.run_signals (
    thread_id        uuid NOT NULL,
    run_id           text NOT NULL,
    correlation_key  text NOT NULL,
    app_name         text NOT NULL,
    source           text NOT NULL CHECK (source IN ('signal', 'timer', 'timeout', 'message')),
    payload          json NOT NULL DEFAULT 'null',
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at          timestamptz,
    FOREIGN KEY (thread_id, run_id) REFERENCES {schema}.runs (thread_id, id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX IF NOT EXISTS run_signals_key ON {schema}.run_signals (thread_id, run_id, md5(correlation_key));

-- run_steps: what a run has done, so that it is not done again. One that is `started` and of an earlier attempt was
-- cut off, and nobody knows how far it came.
CREATE TABLE IF NOT EXISTS {schema}.run_steps (
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
    FOREIGN KEY (thread_id, run_id) REFERENCES {schema}.runs (thread_id, id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX IF NOT EXISTS run_steps_key ON {schema}.run_steps (thread_id, run_id, md5(name));
