-- Returns the slot of a user's threads, 0 to 1023; `cognizes.engine.models.user_slot` computes the same.
CREATE OR REPLACE FUNCTION {schema}.user_slot(p_app_name text, p_user_id text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (('x' || left(md5(length(p_app_name) || ':' || p_app_name || p_user_id), 8))::bit(32)::bigint & 1023)::integer
$$;

-- Returns the slot that a thread id carries; null for ids of older versions and of threads inserted in SQL, which are not of
-- version 8. The ten bits after the version are the slot.
CREATE OR REPLACE FUNCTION {schema}.slot_of(p_thread_id uuid) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN get_byte(uuid_send(p_thread_id), 6) >> 4 = 8
                THEN ((get_byte(uuid_send(p_thread_id), 6) & 15) << 6) | (get_byte(uuid_send(p_thread_id), 7) >> 2) END
$$;
