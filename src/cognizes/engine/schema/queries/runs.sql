-- create_run: A new run and its event.
SELECT {schema}.create_run($1, $2, $3, $4, $5, $6::text::json);

-- change_run: Another status and its event; an attempt that does not hold the run is refused.
SELECT {schema}.change_run($1, $2, $3, $4, $5, $6, $7::text::json) FROM {schema}.check_fence($1, $2, $8);

-- record_run_progress: A thought, a tool call or a result, and its event; fenced as well.
SELECT {schema}.record_run_progress($1, $2, $3, $4::text::jsonb, $5, $6::text::json)
  FROM {schema}.check_fence($1, $2, $7);

-- read_run: One run of a thread.
SELECT id, thread_id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at, handler, input::text AS input, result::text AS result, worker_id, attempt,
       failures, max_attempts, available_at, lease_expires_at, wait_kind, wait_key, wait_reason, wait_expires_at,
       wait_timeout_node, resumption_context::text AS resumption_context
  FROM {schema}.runs WHERE thread_id = $1 AND id = $2;

-- list_runs: The runs of a thread, newest first.
SELECT id, thread_id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at, handler, input::text AS input, result::text AS result, worker_id, attempt,
       failures, max_attempts, available_at, lease_expires_at, wait_kind, wait_key, wait_reason, wait_expires_at,
       wait_timeout_node, resumption_context::text AS resumption_context
  FROM {schema}.runs WHERE thread_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2;

-- find_runs: The runs of an id, in all threads of some apps (null: all) and of a user (null: all), newest first.
SELECT id, thread_id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at, handler, input::text AS input, result::text AS result, worker_id, attempt,
       failures, max_attempts, available_at, lease_expires_at, wait_kind, wait_key, wait_reason, wait_expires_at,
       wait_timeout_node, resumption_context::text AS resumption_context
  FROM {schema}.runs
 WHERE id = $1 AND ($2::text[] IS NULL OR app_name = ANY ($2))
   AND ($3::text IS NULL OR EXISTS (SELECT FROM {schema}.threads t WHERE t.id = thread_id AND t.user_id = $3))
 ORDER BY created_at DESC
 LIMIT 100;

-- search_runs: Runs of all threads, newest first, by status, app and handler; older than one that was listed before.
SELECT id, thread_id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at, handler, input::text AS input, result::text AS result, worker_id, attempt,
       failures, max_attempts, available_at, lease_expires_at, wait_kind, wait_key, wait_reason, wait_expires_at,
       wait_timeout_node, resumption_context::text AS resumption_context
  FROM {schema}.runs
 WHERE ($1::text[] IS NULL OR status = ANY ($1)) AND ($2::text IS NULL OR app_name = $2)
   AND ($3::text IS NULL OR handler = $3)
   AND ($8::text IS NULL OR EXISTS (SELECT FROM {schema}.threads t WHERE t.id = thread_id AND t.user_id = $8))
   AND ($4::timestamptz IS NULL OR (created_at, thread_id, id) < ($4, $5::uuid, $6::text))
 ORDER BY created_at DESC, thread_id DESC, id DESC
 LIMIT $7;

-- enqueue_run: A new run for a worker, or one that is leased at once, and its event.
SELECT {schema}.enqueue_run($1, $2, $3, $4, $5::text::json, $6, $7, $8, $9, $10, $11, $12::text::json);

-- turn_over_runs: Some runs end, others are claimed; what became of each.
SELECT place, outcome,
       (run).id, (run).thread_id, (run).app_name, (run).status, (run).thinking_steps::text AS thinking_steps,
       (run).tool_calls::text AS tool_calls, (run).error, (run).created_at, (run).started_at, (run).completed_at,
       (run).handler, (run).input::text AS input, (run).result::text AS result, (run).worker_id, (run).attempt,
       (run).failures, (run).max_attempts, (run).available_at, (run).lease_expires_at, (run).wait_kind, (run).wait_key,
       (run).wait_reason, (run).wait_expires_at, (run).wait_timeout_node,
       (run).resumption_context::text AS resumption_context
  FROM {schema}.turn_over_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::jsonb, $11);

-- end_runs: Some runs end, whoever holds them now is waited for; what became of each.
SELECT place, outcome,
       (run).id, (run).thread_id, (run).app_name, (run).status, (run).thinking_steps::text AS thinking_steps,
       (run).tool_calls::text AS tool_calls, (run).error, (run).created_at, (run).started_at, (run).completed_at,
       (run).handler, (run).input::text AS input, (run).result::text AS result, (run).worker_id, (run).attempt,
       (run).failures, (run).max_attempts, (run).available_at, (run).lease_expires_at, (run).wait_kind, (run).wait_key,
       (run).wait_reason, (run).wait_expires_at, (run).wait_timeout_node,
       (run).resumption_context::text AS resumption_context
  FROM {schema}.end_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, true);

-- claim_run: One run for a worker; its attempt.
SELECT {schema}.claim_run($1, $2, $3, $4, $5);

-- extend_leases: Those who execute these runs are alive, and will say so again in time. Returns whose leases hold.
-- Locked in one order first: those who end several runs of a thread take them in the same one.
WITH mine AS MATERIALIZED (
    SELECT r.thread_id, r.id, r.attempt
      FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS held (thread_id, id, attempt)
      JOIN {schema}.runs r ON r.thread_id = held.thread_id AND r.id = held.id AND r.attempt = held.attempt
     WHERE r.status = 'running' ORDER BY r.thread_id, r.id FOR NO KEY UPDATE OF r
)
UPDATE {schema}.runs r
   SET lease_expires_at = clock_timestamp() + $4::interval
  FROM mine
 WHERE r.thread_id = mine.thread_id AND r.id = mine.id AND r.attempt = mine.attempt AND r.status = 'running'
RETURNING r.thread_id, r.id, r.attempt;

-- wait_run: A wait and its event.
SELECT {schema}.wait_run($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10, $11, $12::text::json);

-- signal_run: A signal, and what became of it.
SELECT {schema}.signal_run($1, $2, $3, $4::text::json, $5::text[], $6);

-- read_signal: What ended the wait of a kind for a key, or will end it.
SELECT source, payload::text AS payload, used_at FROM {schema}.run_signals
 WHERE thread_id = $1 AND run_id = $2 AND md5(correlation_key) = md5($3)
   AND (may_answer IS NULL OR $4 = ANY (may_answer));

-- read_used_signals: What ended the waits of a run so far.
SELECT correlation_key, source, payload::text AS payload FROM {schema}.run_signals
 WHERE thread_id = $1 AND run_id = $2 AND used_at IS NOT NULL ORDER BY used_at;

-- release_run: Back to the queue, now or after a while; or failed.
SELECT {schema}.release_run($1, $2, $3, $4, $5, $6, $7);

-- begin_step: A step of a run starts, unless it has finished before. Returns it as it was before.
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

-- end_step: A step of a run is over.
UPDATE {schema}.run_steps
   SET status = $5, result = $6::text::json, error = $7, finished_at = clock_timestamp()
  FROM {schema}.check_fence($1, $2, $3)
 WHERE thread_id = $1 AND run_id = $2 AND md5(name) = md5($4) AND attempt = $3;

-- list_steps: The steps of a run, in the order they were begun.
SELECT name, status, attempt, result::text AS result, error, started_at, finished_at FROM {schema}.run_steps
 WHERE thread_id = $1 AND run_id = $2 ORDER BY started_at;
