-- start_hosted_run: Start a leased run of a hosted agent with the events of its turn, and read the state of its thread.
SELECT outcome, thread_id AS started_thread_id, (run).*, begun_sequence, is_branched, state, user_state, app_state,
       version, last_sequence, user_version, app_version
  FROM {schema}.start_hosted_run($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::json, $13, $14, $15, $16,
                                 $17::text[], $18, $19, $20::text[], $21::text[], $22::text[], $23::text[], $24::text[],
                                 $25::text[], $26::text[], $27, $28);

-- find_active_run: Find the run of a thread that is executed, or that a server continues next because its lease expired: it is
-- still running, or pending for this handler. The oldest one if there are two.
SELECT id FROM {schema}.runs
 WHERE thread_id = $1 AND lease_duration IS NOT NULL AND (status = 'running' OR (status = 'pending' AND handler = $2))
 ORDER BY created_at, id
 LIMIT 1;

-- find_waiting_runs: Find the runs of a handler (null: of none) that wait on a thread, oldest first.
SELECT id, wait_kind FROM {schema}.runs
 WHERE thread_id = $1 AND status = 'waiting' AND handler IS NOT DISTINCT FROM $2
 ORDER BY created_at, id;

-- find_invocation_of_run: Find the last invocation that wrote an event of a run.
SELECT invocation_id FROM {schema}.events
 WHERE run_id = $2 AND thread_id = $1 AND invocation_id <> ''
 ORDER BY sequence_num DESC
 LIMIT 1;

-- find_keys_written_by_run: Find the keys of the state that an author wrote in a run and did not delete afterwards.
SELECT key FROM (
        SELECT DISTINCT ON (written.key) written.key, written.value::jsonb AS value
          FROM {schema}.events e
         CROSS JOIN LATERAL json_each(e.actions -> 'state_delta') AS written
         WHERE e.run_id = $2 AND e.thread_id = $1 AND e.author = $3 AND e.event_type = 'state_update'
         ORDER BY written.key, e.sequence_num DESC) AS last_change
 WHERE value <> '{"$delete": true}'::jsonb;

-- find_newest_message: Find the highest sequence number of these messages; 0 if none is stored.
SELECT coalesce(max(sequence_num), 0) FROM {schema}.messages WHERE thread_id = $1 AND id = ANY ($2::text[]);

-- find_wait_for_person: Find the newest run of a thread that waits for a person, and the event with which it began to wait.
SELECT r.wait_key, e.sequence_num
  FROM {schema}.runs r
 CROSS JOIN LATERAL (
        SELECT sequence_num FROM {schema}.events
         WHERE run_id = r.id AND thread_id = r.thread_id AND event_type = 'run_waiting'
         ORDER BY sequence_num DESC
         LIMIT 1) e
 WHERE r.thread_id = $1 AND r.status = 'waiting' AND r.wait_kind = 'human'
 ORDER BY r.created_at DESC, r.id DESC
 LIMIT 1;

-- read_calls_after_user: Read calls, results and answers after the last text of the user and before a sequence number, newest first.
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $4 THEN e.id END AS id, CASE WHEN e.bytes <= $4 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $4 THEN e.author END AS author,
       CASE WHEN e.bytes <= $4 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $4 THEN e.actions::text END AS actions
  FROM {schema}.branch_path($1, NULL) AS path
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= path.first_sequence
           AND sequence_num <= least(path.last_sequence, $2::bigint - 1)
           AND sequence_num > coalesce((
                SELECT m.sequence_num FROM {schema}.messages m
                 WHERE m.thread_id = $1 AND m.sequence_num < $2 AND m.role = 'user' AND m.content <> ''
                 ORDER BY m.sequence_num DESC
                 LIMIT 1), 0)
           -- A message of ADK that has a text can also have calls.
           AND event_type IN ('act', 'tool_call', 'observe', 'tool_result', 'assistant_message')
         ORDER BY sequence_num DESC
         LIMIT $3) e
 ORDER BY e.sequence_num DESC
 LIMIT $3;
