-- Whether a write had happened by the time of an event. Write numbers decide; a row without a number was written before there
-- were numbers, or imported, and precedes every row that has one. Of two such rows only the timestamps are known.
CREATE OR REPLACE FUNCTION {schema}.is_written_by(
    p_write_number bigint, p_written_at timestamptz, p_event_number bigint, p_event_at timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN p_event_number IS NOT NULL THEN coalesce(p_write_number <= p_event_number, true)
        WHEN p_write_number IS NOT NULL THEN false
        ELSE p_written_at <= p_event_at
    END
$$;
