-- Runs are claimed in the order in which they became due, and what is due in days does not stand in front of what is due
-- now. Functions whose arguments have changed leave no older namesake behind.

CREATE INDEX IF NOT EXISTS idx_runs_due ON {schema}.runs (handler, greatest(created_at, available_at), id)
    WHERE status = 'pending';
DROP INDEX IF EXISTS {schema}.idx_runs_claimable;

DROP FUNCTION IF EXISTS {schema}.change_run(uuid, text, text, text, text, text, json);
DROP FUNCTION IF EXISTS {schema}.claim_runs(text[], text, interval, integer);
DROP FUNCTION IF EXISTS {schema}.end_run(uuid, text, integer, text, json, text, text, text, json);
DROP FUNCTION IF EXISTS {schema}.recall_by_words(
    text, text, text, text, text, text[], text, timestamptz, timestamptz, integer);
DROP FUNCTION IF EXISTS {schema}.recall_by_vector(
    text, text, text, integer, text, text, text[], text, timestamptz, timestamptz, integer);
