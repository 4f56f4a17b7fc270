-- Claim pending runs of these handlers for workers, one for each entry of p_worker_ids (a worker may be named more than
-- once). Runs of a higher priority come first, then those that became due first. A run whose queue is full, or has used its rate,
-- stays. Runs, threads and limited queues that another transaction has locked are skipped, so a claim never waits. Runs of one
-- handler, queue and priority are a group; groups of one priority are served in the order of their oldest run.
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
    v_group record;
    v_limits {schema}.run_queues;
    v_run record;
    v_room integer;
    v_tokens double precision;
    v_before integer;
    v_claimed integer := 0;
    -- A constant bounds the index scan: entries that are due later are not read.
    v_now timestamptz := clock_timestamp();
BEGIN
    FOR v_group IN
        -- The first entry of each group in the index. One step per group: the length of a queue does not matter.
        WITH RECURSIVE groups AS (
            SELECT first.*
              FROM (SELECT DISTINCT unnest(p_handlers)) AS asked (handler)
             CROSS JOIN LATERAL (
                   SELECT r.handler, r.queue, -r.priority AS rank, greatest(r.created_at, r.available_at) AS due_at
                     FROM {schema}.runs r
                    WHERE r.handler = asked.handler AND r.status = 'pending'
                    ORDER BY r.queue, -r.priority, greatest(r.created_at, r.available_at) LIMIT 1) AS first
             UNION ALL
            SELECT next.*
              FROM groups
             CROSS JOIN LATERAL (
                   SELECT r.handler, r.queue, -r.priority AS rank, greatest(r.created_at, r.available_at) AS due_at
                     FROM {schema}.runs r
                    WHERE r.handler = groups.handler AND r.status = 'pending'
                      AND (r.queue, -r.priority) > (groups.queue, groups.rank)
                    ORDER BY r.queue, -r.priority, greatest(r.created_at, r.available_at) LIMIT 1) AS next
        )
        SELECT handler, queue, rank FROM groups WHERE due_at <= v_now ORDER BY rank, due_at
    LOOP
        v_room := cardinality(p_worker_ids) - v_claimed;
        SELECT * INTO v_limits FROM {schema}.run_queues q
         WHERE q.name = CASE v_group.queue WHEN '' THEN v_group.handler ELSE v_group.queue END;
        IF FOUND THEN
            -- The lock makes the count of running runs and the tokens true until the commit.
            SELECT * INTO v_limits FROM {schema}.run_queues q WHERE q.name = v_limits.name FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            IF v_limits.concurrency IS NOT NULL THEN
                v_room := least(v_room, v_limits.concurrency - (
                    SELECT count(*) FROM {schema}.runs r
                     WHERE r.status = 'running'
                       AND (r.queue = v_limits.name OR r.queue = '' AND r.handler = v_limits.name)));
            END IF;
            IF v_limits.rate IS NOT NULL THEN
                v_tokens := least(v_limits.rate, v_limits.tokens + v_limits.rate
                    * extract(epoch FROM greatest(clock_timestamp() - v_limits.refilled_at, interval '0'))
                    / extract(epoch FROM v_limits.period));
                v_room := least(v_room, floor(v_tokens)::integer);
            END IF;
            CONTINUE WHEN v_room <= 0;
        END IF;
        v_before := v_claimed;
        FOR v_run IN
            SELECT r.thread_id, r.id FROM {schema}.runs r JOIN {schema}.threads t ON t.id = r.thread_id
             WHERE r.handler = v_group.handler AND r.queue = v_group.queue AND -r.priority = v_group.rank
               AND r.status = 'pending' AND greatest(r.created_at, r.available_at) <= v_now
             ORDER BY greatest(r.created_at, r.available_at), r.id
             LIMIT v_room
               FOR UPDATE OF r SKIP LOCKED
               FOR NO KEY UPDATE OF t SKIP LOCKED
        LOOP
            v_claimed := v_claimed + 1;
            RETURN QUERY SELECT * FROM {schema}.claim_run(
                v_run.thread_id, v_run.id, p_worker_ids[v_claimed], p_lease, gen_random_uuid()::text, false);
        END LOOP;
        IF v_limits.rate IS NOT NULL AND v_claimed > v_before THEN
            UPDATE {schema}.run_queues q SET tokens = v_tokens - (v_claimed - v_before), refilled_at = clock_timestamp()
             WHERE q.name = v_limits.name;
        END IF;
        EXIT WHEN v_claimed >= cardinality(p_worker_ids);
    END LOOP;
END
$$;
