-- create_run: A new run and its event.
SELECT {schema}.create_run($1, $2, $3, $4, $5, $6::text::json);

-- change_run: Another status and its event.
SELECT {schema}.change_run($1, $2, $3, $4, $5, $6, $7::text::json);

-- record_run_progress: A thought, a tool call or a result, and its event.
SELECT {schema}.record_run_progress($1, $2, $3, $4::text::jsonb, $5, $6::text::json);

-- read_run: One run of a thread.
SELECT id, thread_id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at
  FROM {schema}.runs WHERE thread_id = $1 AND id = $2;

-- list_runs: The runs of a thread, newest first.
SELECT id, thread_id, app_name, status, thinking_steps::text AS thinking_steps, tool_calls::text AS tool_calls, error,
       created_at, started_at, completed_at
  FROM {schema}.runs WHERE thread_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2;
