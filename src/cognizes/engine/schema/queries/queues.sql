-- set_queue: Store the limits of a queue. A changed rate begins with a full bucket.
INSERT INTO {schema}.run_queues AS q (name, concurrency, rate, period, tokens) VALUES ($1, $2, $3, $4, coalesce($3, 0))
ON CONFLICT (name) DO UPDATE
   SET concurrency = excluded.concurrency, rate = excluded.rate, period = excluded.period,
       tokens = CASE WHEN (q.rate, q.period) IS NOT DISTINCT FROM (excluded.rate, excluded.period) THEN q.tokens
                     ELSE excluded.tokens END,
       refilled_at = CASE WHEN (q.rate, q.period) IS NOT DISTINCT FROM (excluded.rate, excluded.period) THEN q.refilled_at
                          ELSE clock_timestamp() END;

-- list_queues: Read the queues with limits, or one of them, with the number of their running and pending runs.
SELECT q.name, q.concurrency, q.rate, q.period,
       (SELECT count(*) FROM {schema}.runs r
         WHERE r.status = 'running' AND (r.queue = q.name OR r.queue = '' AND r.handler = q.name)) AS running,
       (SELECT count(*) FROM {schema}.runs r
         WHERE r.status = 'pending' AND (r.queue = q.name OR r.queue = '' AND r.handler = q.name)) AS pending
  FROM {schema}.run_queues q WHERE $1::text IS NULL OR q.name = $1 ORDER BY q.name;

-- delete_queue: Delete the limits of a queue. Its runs stay.
DELETE FROM {schema}.run_queues WHERE name = $1 RETURNING name;
