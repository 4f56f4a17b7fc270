-- list_model_calls: Read the calls of models of a run, oldest first.
SELECT model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, created_at
  FROM {schema}.token_usage
 WHERE thread_id = $1 AND run_id = $2
 ORDER BY created_at
 LIMIT $3;

-- list_status_changes: Read the events that changed the status of a run, oldest first.
SELECT event_type, created_at, content ->> 'wait_kind' AS wait_kind, left(content ->> 'correlation_key', 1000) AS wait_key,
       left(content ->> 'reason', 1000) AS reason
  FROM {schema}.events
 WHERE run_id = $2 AND thread_id = $1 AND event_type IN ('run_started', 'run_waiting', 'run_resumed', 'run_released',
       'run_finished', 'run_failed', 'run_cancelled')
 ORDER BY sequence_num
 LIMIT $3;

-- list_agent_steps: Read the starts and ends of the steps that the agent of a run announced, oldest first.
SELECT event_type, created_at, left(content ->> 'step_name', 1000) AS name
  FROM {schema}.events
 WHERE run_id = $2 AND thread_id = $1 AND event_type IN ('step_start', 'step_end')
 ORDER BY sequence_num
 LIMIT $3;

-- find_run_summaries: Find runs of all threads without their documents, newest first, after a cursor: by status, kind of
-- wait, app, user, and the beginning of the handler's name, with or without the prefix of hosted agents.
SELECT r.thread_id, r.id, r.app_name, t.user_id, left(t.title, 200) AS title, left(first.content, 200) AS first_message,
       r.status, r.handler, left(r.error, 1000) AS error, r.attempt, r.created_at, r.started_at, r.completed_at,
       r.wait_kind, r.wait_key, left(r.wait_reason, 1000) AS wait_reason, r.waiting_since, r.wait_expires_at
  FROM {schema}.runs r
  JOIN {schema}.threads t ON t.id = r.thread_id
  LEFT JOIN LATERAL (
        SELECT m.content FROM {schema}.messages m WHERE m.thread_id = t.id AND m.role IN ('user', 'assistant')
           AND m.content <> '' AND t.title IS NULL
         ORDER BY m.sequence_num LIMIT 1) first ON true
 WHERE ($1::text[] IS NULL OR r.status = ANY ($1)) AND ($2::text[] IS NULL OR r.wait_kind = ANY ($2))
   AND ($3::text IS NULL OR r.app_name = $3) AND ($4::text IS NULL OR t.user_id = $4)
   AND ($5::text IS NULL OR starts_with(r.handler, $5) OR starts_with(r.handler, 'agui/' || $5))
   AND ($6::timestamptz IS NULL OR (r.created_at, r.thread_id, r.id) < ($6, $7::uuid, $8::text))
 ORDER BY r.created_at DESC, r.thread_id DESC, r.id DESC
 LIMIT $9;
