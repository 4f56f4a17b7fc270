-- Returns the time of an ADK event, in seconds since 1970; of other events the time at which they were stored.
-- Reads the first bytes of the text, for the reason given in `is_conversation`.
CREATE OR REPLACE FUNCTION {schema}.adk_event_time(p_content text, p_created_at timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(
        substring(left(p_content, 120) FROM '^\s*\{\s*"adk"\s*:\s*\{\s*"timestamp"\s*:\s*([-+.0-9eE]+)')::double precision,
        extract(epoch FROM p_created_at)::double precision)
$$;
