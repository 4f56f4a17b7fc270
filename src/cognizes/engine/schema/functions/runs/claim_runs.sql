-- Claims pending runs of these handlers for workers, one for each entry of p_worker_ids (a worker may be named more than
-- once), in the order in which they became due. Runs and threads that another transaction has locked are skipped, so a
-- claim never waits. With several handlers the one with the oldest run is served first.
CREATE OR REPLACE FUNCTION {schema}.claim_runs(p_handlers text[], p_worker_ids text[], p_lease interval)
RETURNS SETOF {schema}.run_rows LANGUAGE plpgsql
-- A plan made for an empty table must stay good: scan the index of pending runs and stop at the limit.
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
    -- A constant bounds the index scan: entries that are due later are not read.
    v_now timestamptz := clock_timestamp();
BEGIN
    FOR v_handler IN
        SELECT asked.handler FROM (SELECT DISTINCT unnest(p_handlers)) AS asked (handler)
         CROSS JOIN LATERAL (SELECT greatest(r.created_at, r.available_at) AS due_at FROM {schema}.runs r
                              WHERE r.handler = asked.handler AND r.status = 'pending'
                                AND greatest(r.created_at, r.available_at) <= v_now
                              ORDER BY greatest(r.created_at, r.available_at) LIMIT 1) AS oldest
         ORDER BY oldest.due_at
    LOOP
        FOR v_run IN
            SELECT r.thread_id, r.id FROM {schema}.runs r JOIN {schema}.threads t ON t.id = r.thread_id
             WHERE r.handler = v_handler AND r.status = 'pending' AND greatest(r.created_at, r.available_at) <= v_now
             ORDER BY greatest(r.created_at, r.available_at), r.id
             LIMIT cardinality(p_worker_ids) - v_claimed
               FOR UPDATE OF r SKIP LOCKED
               FOR NO KEY UPDATE OF t SKIP LOCKED
        LOOP
            v_claimed := v_claimed + 1;
            RETURN QUERY SELECT * FROM {schema}.claim_run(
                v_run.thread_id, v_run.id, p_worker_ids[v_claimed], p_lease, gen_random_uuid()::text, false);
        END LOOP;
        EXIT WHEN v_claimed >= cardinality(p_worker_ids);
    END LOOP;
END
$$;
