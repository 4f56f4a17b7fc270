-- webhooks: URLs that are called when a run of an app waits for a person, fails or completes.
CREATE TABLE IF NOT EXISTS {schema}.webhooks (
    id          uuid PRIMARY KEY,
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    url         text NOT NULL,
    events      text[] NOT NULL CHECK (events <@ '{waiting,failed,completed}' AND cardinality(events) > 0),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS idx_webhooks_app ON {schema}.webhooks (app_name);

-- webhook_secrets: the keys of the signatures. A table of its own without app_name: the role of tenants has no right to read it.
CREATE TABLE IF NOT EXISTS {schema}.webhook_secrets (
    webhook_id  uuid PRIMARY KEY REFERENCES {schema}.webhooks (id) ON DELETE CASCADE,
    secret      bytea NOT NULL
);

-- webhook_deliveries: calls that are not answered yet, written in the transaction of the run's change. `due_at` is the time of the
-- next attempt; while an attempt is made, it is the end of the lease of the sender. A delivery that failed too often has `dead_at`.
CREATE TABLE IF NOT EXISTS {schema}.webhook_deliveries (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    webhook_id  uuid NOT NULL REFERENCES {schema}.webhooks (id) ON DELETE CASCADE,
    app_name    text NOT NULL,
    thread_id   uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    run_id      text NOT NULL,
    event       text NOT NULL,
    payload     json NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_at     timestamptz,
    last_error  text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_due ON {schema}.webhook_deliveries (due_at) WHERE dead_at IS NULL;
CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_dead ON {schema}.webhook_deliveries (dead_at) WHERE dead_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_thread ON {schema}.webhook_deliveries (thread_id);
CREATE INDEX IF NOT EXISTS idx_webhook_deliveries_webhook ON {schema}.webhook_deliveries (webhook_id);
