-- `lease_duration` is what the present attempt asked for: progress of a run extends its lease by it.
ALTER TABLE {schema}.runs ADD COLUMN IF NOT EXISTS lease_duration interval;

-- Runs that a client started over REST had no lease. They get one that is long enough for a client that does not extend it.
UPDATE {schema}.runs SET lease_duration = interval '1 day', lease_expires_at = clock_timestamp() + interval '1 day'
 WHERE status = 'running' AND lease_expires_at IS NULL;

-- Functions that are gone, or whose arguments or results have changed.
DROP FUNCTION IF EXISTS {schema}.change_run(uuid, text, text, text, text, text, json, json);
DROP FUNCTION IF EXISTS {schema}.claim_run(uuid, text, text, interval, text);
DROP FUNCTION IF EXISTS {schema}.claim_runs(text[], text[], interval);
DROP FUNCTION IF EXISTS {schema}.create_run(uuid, text, text, text, text, json);
DROP FUNCTION IF EXISTS {schema}.end_runs(
    uuid[], text[], integer[], text[], text[], text[], text[], text[], text[], boolean);
DROP FUNCTION IF EXISTS {schema}.enqueue_run(
    uuid, text, text, text, json, integer, timestamptz, text, interval, text, text, json);
DROP FUNCTION IF EXISTS {schema}.record_run_progress(uuid, text, text, jsonb, text, json);
DROP FUNCTION IF EXISTS {schema}.take_run(uuid, text, text, interval, text);
DROP FUNCTION IF EXISTS {schema}.turn_over_runs(
    uuid[], text[], integer[], text[], text[], text[], text[], text[], text[], jsonb, interval);
