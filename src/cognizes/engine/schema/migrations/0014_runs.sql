-- A signal remembers which kinds of wait its sender may answer (`may_answer`, null: all kinds) and the id under which it
-- was sent (`signal_id`), so that a signal that is sent again after a lost answer gets the same answer.
ALTER TABLE {schema}.run_signals
    ADD COLUMN IF NOT EXISTS may_answer text[],
    ADD COLUMN IF NOT EXISTS signal_id text;

COMMENT ON COLUMN {schema}.run_signals.may_answer IS 'Wait kinds that the sender may answer; null: all kinds.';

-- Functions whose arguments have changed: the older signatures are removed.
DROP FUNCTION IF EXISTS {schema}.resolve_wait(uuid, text, text, json);
DROP FUNCTION IF EXISTS {schema}.signal_run(uuid, text, text, json);
DROP FUNCTION IF EXISTS {schema}.take_run(uuid, text, text, interval);
DROP FUNCTION IF EXISTS {schema}.claim_run(uuid, text, text, interval);
DROP FUNCTION IF EXISTS {schema}.release_run(uuid, text, integer, text, interval, interval);
DROP FUNCTION IF EXISTS {schema}.apply_memory_snapshot(uuid, text, text, text, jsonb, jsonb, text, integer);
