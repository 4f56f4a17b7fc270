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
