-- shared_buckets: the token bucket of each caller, shared by all processes that serve requests. `caller` is a digest.
-- Unlogged, as the next table: after a crash or a failover all callers begin with a full bucket.
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.shared_buckets (
    caller    text PRIMARY KEY,
    level     double precision NOT NULL,
    level_at  timestamptz NOT NULL
);

-- shared_streams: how many streams a caller has open in a process.
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.shared_streams (
    caller      text NOT NULL,
    process_id  uuid NOT NULL,
    streams     integer NOT NULL,
    seen_at     timestamptz NOT NULL,
    PRIMARY KEY (caller, process_id)
);

CREATE INDEX IF NOT EXISTS idx_shared_streams_seen_at ON {schema}.shared_streams (seen_at);
CREATE INDEX IF NOT EXISTS idx_shared_buckets_level_at ON {schema}.shared_buckets (level_at);
