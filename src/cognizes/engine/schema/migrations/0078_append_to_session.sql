-- The function returns the sequence numbers and times of its events now, and another row type needs another function.
DROP FUNCTION IF EXISTS {schema}.append_to_session(
    text, text, text, uuid, text[], text[], text[], text[], text[], text[], text[], text, boolean, text, integer);
