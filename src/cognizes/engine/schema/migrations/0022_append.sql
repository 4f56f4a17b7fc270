-- The fence of a run is an argument of the append functions.
DROP FUNCTION IF EXISTS {schema}.append_fenced_event(
    text, integer, uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean,
    boolean, integer, integer, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS {schema}.append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS {schema}.append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[], bigint[], bigint[]);

-- They are called `snapshot_initial_state` and `snapshot_initial_states` now.
DROP TRIGGER IF EXISTS keep_first_state ON {schema}.threads;
DROP FUNCTION IF EXISTS {schema}.keep_first_state();
DROP FUNCTION IF EXISTS {schema}.keep_first_states(uuid[]);

COMMENT ON COLUMN {schema}.threads.is_as_created IS 'Whether the state is still the initial one, so that no snapshot of it exists.';
