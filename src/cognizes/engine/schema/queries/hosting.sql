-- find_leased_run: The run that a living process executes on a thread; the first, should two have begun at once.
SELECT id FROM {schema}.runs
 WHERE thread_id = $1 AND status = 'running' AND lease_expires_at > clock_timestamp()
 ORDER BY created_at, id
 LIMIT 1;

-- find_invocation_of_run: The last invocation that wrote an event of a run.
SELECT invocation_id FROM {schema}.events
 WHERE run_id = $2 AND thread_id = $1 AND invocation_id <> ''
 ORDER BY sequence_num DESC
 LIMIT 1;

-- find_newest_message: How far a client has come that knows these messages.
SELECT coalesce(max(sequence_num), 0) FROM {schema}.messages WHERE thread_id = $1 AND id = ANY ($2::text[]);
