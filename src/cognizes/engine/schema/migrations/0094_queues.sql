-- Runs of one queue share its limits; '' is the queue that has the name of the run's handler. Higher priorities are claimed first.
ALTER TABLE {schema}.runs
    ADD COLUMN IF NOT EXISTS queue text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS priority integer NOT NULL DEFAULT 0;

ALTER TABLE {schema}.schedules
    ADD COLUMN IF NOT EXISTS queue text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS priority integer NOT NULL DEFAULT 0;

-- Claims step from one combination of queue and priority to the next, and read each in the order of its due times.
CREATE INDEX IF NOT EXISTS idx_runs_claim
    ON {schema}.runs (handler, queue, (-priority), greatest(created_at, available_at), id) WHERE status = 'pending';
DROP INDEX IF EXISTS {schema}.idx_runs_due;

-- run_queues: the limits of a queue, over all processes. `concurrency` limits running runs, `rate` limits claims per `period`:
-- a bucket of `rate` tokens, which had `tokens` at `refilled_at`. A null limit does not exist.
CREATE TABLE IF NOT EXISTS {schema}.run_queues (
    name         text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 1000),
    concurrency  integer CHECK (concurrency >= 0),
    rate         integer CHECK (rate > 0),
    period       interval NOT NULL DEFAULT interval '1 second' CHECK (period > interval '0'),
    tokens       double precision NOT NULL DEFAULT 0,
    refilled_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The arguments have changed.
DROP FUNCTION IF EXISTS {schema}.create_run(
    uuid, text, text, text, json, integer, timestamptz, text, interval, text, json);
