-- Returns whether a write precedes an event. Write numbers decide; a row without a number is older than write numbers, or
-- imported, and precedes every row that has one. Two such rows are compared by their timestamps.
CREATE OR REPLACE FUNCTION {schema}.is_written_by(
    p_write_number bigint, p_written_at timestamptz, p_event_number bigint, p_event_at timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN p_event_number IS NOT NULL THEN coalesce(p_write_number <= p_event_number, true)
        WHEN p_write_number IS NOT NULL THEN false
        ELSE p_written_at <= p_event_at
    END
$$;
