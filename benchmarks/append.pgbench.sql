\if :is_started
\else
SELECT id AS thread_id, version FROM threads WHERE session_id = 'pgbench-' || :client_id \gset
\set is_started true
\set step 0
\endif
\set step :step + 1
SELECT version FROM append_event(
    :thread_id::uuid, uuidv7()::text, NULL, 'benchmark', 'agent', 'state_update', '{}'::text::json,
    ('{"state_delta":{"step":' || :step || '}}')::text::json, ('{"step":' || :step || '}')::text::jsonb, NULL, NULL,
    :version::bigint, NULL, NULL, NULL, false, false, :snapshot_every, :max_state_bytes) \gset
