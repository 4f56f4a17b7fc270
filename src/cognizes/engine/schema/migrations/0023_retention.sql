-- Old writes to `user:` and `app:` state are folded into one row, which holds the whole state as of its version.
ALTER TABLE {schema}.state_writes ADD COLUMN IF NOT EXISTS is_folded boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN {schema}.state_writes.is_folded IS 'Whether delta is the whole state at this version; earlier writes are gone.';
