-- Takes the tokens that a process gave to callers out of their shared buckets and notes the streams that they have open
-- there. Returns the level of each bucket and the streams in other processes, by the place of the caller. A level may be
-- negative: processes give tokens before they know of each other. Streams of a process that was not seen for 10 seconds
-- do not count.
CREATE OR REPLACE FUNCTION {schema}.exchange_limits(
    p_process_id uuid, p_callers text[], p_taken double precision[], p_rates double precision[],
    p_sizes double precision[], p_streams integer[]
) RETURNS TABLE (place integer, level double precision, streams integer) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH asked AS (
        -- In one order, so that two processes do not wait for each other.
        SELECT * FROM unnest(p_callers, p_taken, p_rates, p_sizes, p_streams) WITH ORDINALITY
               AS asked (caller, taken, rate, size, streams, place) ORDER BY caller
    ), changed AS (
        INSERT INTO {schema}.shared_buckets AS b (caller, level, level_at)
        SELECT a.caller, a.size - a.taken, v_now FROM asked a ORDER BY a.caller
        ON CONFLICT (caller) DO UPDATE SET level = greatest(
            least((SELECT a.size FROM asked a WHERE a.caller = b.caller),
                  b.level + greatest(extract(epoch FROM v_now - b.level_at), 0)
                            * (SELECT a.rate FROM asked a WHERE a.caller = b.caller))
            - (SELECT a.taken FROM asked a WHERE a.caller = b.caller),
            - (SELECT a.size FROM asked a WHERE a.caller = b.caller)), level_at = v_now
        RETURNING b.caller, b.level
    ), noted AS (
        INSERT INTO {schema}.shared_streams AS s (caller, process_id, streams, seen_at)
        SELECT a.caller, p_process_id, a.streams, v_now FROM asked a ORDER BY a.caller
        ON CONFLICT (caller, process_id) DO UPDATE SET streams = EXCLUDED.streams, seen_at = v_now
    )
    SELECT a.place::integer, c.level,
           coalesce((SELECT sum(s.streams) FROM {schema}.shared_streams s
                      WHERE s.caller = a.caller AND s.process_id <> p_process_id
                        AND s.seen_at > v_now - interval '10 seconds'), 0)::integer
      FROM asked a JOIN changed c ON c.caller = a.caller;
    DELETE FROM {schema}.shared_streams s WHERE s.seen_at < v_now - interval '1 minute';
    DELETE FROM {schema}.shared_buckets b WHERE b.level_at < v_now - interval '1 hour';
END
$$;
