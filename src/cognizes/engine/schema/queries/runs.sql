-- create_run: Create a run with its event.
SELECT * FROM {schema}.create_run($1, $2, $3, $4, $5::text::json, $6, $7, $8, $9, $10, $11::text::json, $12, $13, $14);

-- claim_run: Claim one run for a worker.
SELECT * FROM {schema}.claim_run($1, $2, $3, $4, $5, $6);

-- end_and_claim_runs: End some runs, then claim others, in one commit. $9 is a list of {"handlers": [], "workers": []}; runs
-- that entry n claims have place n. A batch waits for no lock.
SELECT place, outcome, (run).* FROM {schema}.end_runs($1, $2, $3, $4, $5, $6, $7, $8, false)
 UNION ALL
SELECT (entry.number - 1)::integer, 'claimed', claimed.*
  FROM jsonb_array_elements($9::text::jsonb) WITH ORDINALITY AS entry (claim, number)
 CROSS JOIN LATERAL {schema}.claim_runs(
           ARRAY(SELECT jsonb_array_elements_text(entry.claim -> 'handlers')),
           ARRAY(SELECT jsonb_array_elements_text(entry.claim -> 'workers')), $10) AS claimed;

-- end_runs: End some runs of one thread; wait for the locks.
SELECT place, outcome, (run).* FROM {schema}.end_runs($1, $2, $3, $4, $5, $6, $7, $8, true);

-- release_run: Make a run claimable again, now or after a while, or fail it.
SELECT {schema}.release_run($1, $2, $3, $4, $5, $6, $7);

-- retry_run: Make a failed run pending again.
SELECT * FROM {schema}.retry_run($1, $2, $3);

-- record_run_progress: Add a thought, a tool call or a result with its event.
SELECT {schema}.record_run_progress($1, $2, $3, $4::text::jsonb, $5, $6::text::json, $7);

-- read_run: Read one run of a thread.
SELECT * FROM {schema}.run_rows WHERE thread_id = $1 AND id = $2;

-- read_run_statuses: Read the status of some runs, each named by its thread and id.
SELECT r.thread_id, r.id, r.status FROM unnest($1::uuid[], $2::text[]) AS named (thread_id, id)
  JOIN {schema}.runs r ON r.thread_id = named.thread_id AND r.id = named.id;

-- list_runs: Read the runs of a thread, newest first.
SELECT * FROM {schema}.run_rows WHERE thread_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2;

-- find_runs: Find the runs of an id, in all threads of some apps (null: all) and of a user (null: all), newest first.
SELECT * FROM {schema}.run_rows
 WHERE id = $1 AND ($2::text[] IS NULL OR app_name = ANY ($2))
   AND ($3::text IS NULL OR EXISTS (SELECT FROM {schema}.threads t WHERE t.id = thread_id AND t.user_id = $3))
 ORDER BY created_at DESC
 LIMIT 100;

-- search_runs: Find runs of all threads, newest first, by status, app and handler, after a cursor.
SELECT * FROM {schema}.run_rows
 WHERE ($1::text[] IS NULL OR status = ANY ($1)) AND ($2::text IS NULL OR app_name = $2)
   AND ($3::text IS NULL OR handler = $3)
   AND ($8::text IS NULL OR EXISTS (SELECT FROM {schema}.threads t WHERE t.id = thread_id AND t.user_id = $8))
   AND ($4::timestamptz IS NULL OR (created_at, thread_id, id) < ($4, $5::uuid, $6::text))
 ORDER BY created_at DESC, thread_id DESC, id DESC
 LIMIT $7;

-- sweep_runs: Release the runs whose lease expired and end the waits that are due. After a longer gap than $1 between two
-- sweeps, workers have time to extend their leases.
SELECT {schema}.release_expired_leases($1::interval) + {schema}.resume_due_waits();

-- extend_leases: Extend the leases of runs that these attempts hold; $4 is the duration, null: that of each lease. Returns
-- the runs. They are locked in the order in which `end_runs` locks them.
WITH mine AS MATERIALIZED (
    SELECT r.thread_id, r.id, r.attempt
      FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS held (thread_id, id, attempt)
      JOIN {schema}.runs r ON r.thread_id = held.thread_id AND r.id = held.id AND r.attempt = held.attempt
     WHERE r.status = 'running' ORDER BY r.thread_id, r.id FOR NO KEY UPDATE OF r
)
UPDATE {schema}.runs r
   SET lease_expires_at = clock_timestamp() + coalesce($4::interval, r.lease_duration),
       lease_duration = coalesce($4::interval, r.lease_duration)
  FROM mine
 WHERE r.thread_id = mine.thread_id AND r.id = mine.id AND r.attempt = mine.attempt AND r.status = 'running'
RETURNING r.thread_id, r.id, r.attempt;

-- wait_run: Store a wait with its event.
SELECT {schema}.wait_run($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10, $11, $12::text::json);

-- signal_run: Store a signal; return its outcome.
SELECT {schema}.signal_run($1, $2, $3, $4::text::json, $5::text[], $6);

-- read_signal: Read the signal that ended the wait of a kind for a key, or that will end it.
SELECT source, payload::text AS payload, used_at FROM {schema}.run_signals
 WHERE thread_id = $1 AND run_id = $2 AND md5(correlation_key) = md5($3)
   AND (may_answer IS NULL OR $4 = ANY (may_answer));

-- read_used_signals: Read the signals that ended the waits of a run.
SELECT correlation_key, source, payload::text AS payload, used_at FROM {schema}.run_signals
 WHERE thread_id = $1 AND run_id = $2 AND used_at IS NOT NULL ORDER BY used_at;

-- count_open_runs: Count the runs that have not ended, by status.
SELECT status, count(*) AS runs FROM {schema}.runs WHERE status IN ('pending', 'running', 'waiting') GROUP BY status;

-- read_run_tail: Read the sequence of the last event of a run, and whether one of its streams is open.
SELECT (SELECT max(e.sequence_num) FROM {schema}.events e WHERE e.run_id = $2 AND e.thread_id = $1) AS last_sequence,
       EXISTS (SELECT FROM {schema}.message_streams s
                WHERE s.thread_id = $1 AND s.run_id = $2 AND s.status = 'streaming') AS is_streaming;

-- begin_step: Start a step of a run, unless it has finished. Returns the step as it was before.
WITH fence AS (
    SELECT {schema}.check_fence($1, $2, $3) AS is_held
), before AS (
    SELECT s.status, s.attempt, s.result, s.error FROM {schema}.run_steps s
     WHERE s.thread_id = $1 AND s.run_id = $2 AND md5(s.name) = md5($4)
), begun AS (
    INSERT INTO {schema}.run_steps AS s (thread_id, run_id, name, app_name, status, attempt)
    SELECT r.thread_id, r.id, $4, r.app_name, 'started', $3
      FROM fence JOIN {schema}.runs r ON r.thread_id = $1 AND r.id = $2 AND fence.is_held
    ON CONFLICT (thread_id, run_id, md5(name)) DO UPDATE
       SET status = 'started', attempt = EXCLUDED.attempt, error = NULL, started_at = clock_timestamp()
     WHERE s.status <> 'finished'
    RETURNING 1
)
SELECT before.status, before.attempt, before.result::text AS result, before.error
  FROM fence LEFT JOIN before ON true LEFT JOIN (SELECT count(*) FROM begun) AS counted ON true;

-- end_step: Store the end of a step.
UPDATE {schema}.run_steps
   SET status = $5, result = $6::text::json, error = $7, finished_at = clock_timestamp()
  FROM {schema}.check_fence($1, $2, $3)
 WHERE thread_id = $1 AND run_id = $2 AND md5(name) = md5($4) AND attempt = $3;

-- list_steps: Read the steps of a run, in the order in which they started.
SELECT name, status, attempt, result::text AS result, error, started_at, finished_at FROM {schema}.run_steps
 WHERE thread_id = $1 AND run_id = $2 ORDER BY started_at;
