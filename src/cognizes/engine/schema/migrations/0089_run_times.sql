-- The times from which the delay of a claim and the duration of a wait are measured.
ALTER TABLE {schema}.runs
    ADD COLUMN IF NOT EXISTS claimable_since timestamptz,
    ADD COLUMN IF NOT EXISTS waiting_since timestamptz;

COMMENT ON COLUMN {schema}.runs.claimable_since IS 'When the run became claimable, set by its last claim: its creation, or available_at.';
COMMENT ON COLUMN {schema}.runs.waiting_since IS 'When its current wait began, or its last one.';
