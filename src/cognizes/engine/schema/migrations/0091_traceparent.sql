-- The position in a trace at which a run was created (W3C traceparent): every attempt continues it, in any process.
ALTER TABLE {schema}.runs ADD COLUMN IF NOT EXISTS traceparent text;

DROP FUNCTION IF EXISTS {schema}.create_run(
    uuid, text, text, text, json, integer, timestamptz, text, interval, text, json, text, integer);
DROP FUNCTION IF EXISTS {schema}.begin_hosted_run(
    uuid, text, text, text, json, integer, text, interval, text, text[], boolean);
