-- Gives pending runs of these handlers to a worker, oldest first. A run, or a thread, that somebody else holds right now
-- is passed over, so nobody waits here. With several handlers the one with the oldest run is served first.
CREATE OR REPLACE FUNCTION {schema}.claim_runs(
    p_handlers text[], p_worker_id text, p_lease interval, p_limit integer
) RETURNS SETOF {schema}.runs LANGUAGE plpgsql
-- The plan of an empty table must stay good: walk the index of pending runs, and stop at the limit.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_handler text;
    v_run record;
    v_claimed integer := 0;
BEGIN
    FOR v_handler IN
        SELECT asked.handler FROM (SELECT DISTINCT unnest(p_handlers)) AS asked (handler)
         CROSS JOIN LATERAL (SELECT r.created_at FROM {schema}.runs r
                              WHERE r.handler = asked.handler AND r.status = 'pending'
                              ORDER BY r.created_at LIMIT 1) AS oldest
         ORDER BY oldest.created_at
    LOOP
        FOR v_run IN
            SELECT r.thread_id, r.id FROM {schema}.runs r JOIN {schema}.threads t ON t.id = r.thread_id
             WHERE r.handler = v_handler AND r.status = 'pending'
               AND (r.available_at IS NULL OR r.available_at <= clock_timestamp())
             ORDER BY r.created_at, r.id
             LIMIT p_limit - v_claimed
               FOR UPDATE OF r SKIP LOCKED
               FOR NO KEY UPDATE OF t SKIP LOCKED
        LOOP
            PERFORM {schema}.take_run(v_run.thread_id, v_run.id, p_worker_id, p_lease);
            RETURN QUERY SELECT * FROM {schema}.runs WHERE thread_id = v_run.thread_id AND id = v_run.id;
            v_claimed := v_claimed + 1;
        END LOOP;
        EXIT WHEN v_claimed >= p_limit;
    END LOOP;
END
$$;
