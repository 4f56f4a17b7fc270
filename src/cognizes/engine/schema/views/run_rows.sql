-- A run as the engine reads it: the one list of its columns, documents as text. Rows are visible to the caller as in `runs`.
CREATE OR REPLACE VIEW {schema}.run_rows WITH (security_invoker = true) AS
SELECT thread_id, id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at, handler, input::text AS input, result::text AS result, worker_id, attempt,
       failures, max_attempts, available_at, lease_expires_at, wait_kind, wait_key, wait_reason, wait_expires_at,
       wait_timeout_node, resumption_context::text AS resumption_context, claimable_since, waiting_since,
       queue, priority, traceparent
  FROM {schema}.runs;
