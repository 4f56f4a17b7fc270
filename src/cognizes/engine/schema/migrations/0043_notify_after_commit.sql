-- Whether an append notifies in its transaction is an argument of the append functions.
DROP FUNCTION IF EXISTS {schema}.append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint, bigint, bigint, text, integer);
DROP FUNCTION IF EXISTS {schema}.append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[], bigint[], bigint[], text[], integer[]);
