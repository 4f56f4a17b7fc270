-- The function has the argument p_wait now, and two functions of one name with defaults would be ambiguous.
DROP FUNCTION IF EXISTS {schema}.append_to_session(
    text, text, text, uuid, text[], text[], text[], text[], text[], text[], text[], text, boolean, text, integer, boolean);
