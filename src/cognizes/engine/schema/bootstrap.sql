-- The tables of the migrator, created before the first migration.
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.schema_migrations (
    name            text PRIMARY KEY,
    number          integer NOT NULL,
    checksum        text NOT NULL,
    engine_version  text NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT now()
);
-- The revision of the set of functions that a function belongs to. 0: installed before revisions were recorded.
ALTER TABLE {schema}.schema_migrations ADD COLUMN IF NOT EXISTS revision integer NOT NULL DEFAULT 0;
