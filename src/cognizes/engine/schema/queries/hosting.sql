-- find_leased_run: The run that a living process executes on a thread; the first, should two have begun at once.
SELECT id FROM {schema}.runs
 WHERE thread_id = $1 AND status = 'running' AND lease_expires_at > clock_timestamp()
 ORDER BY lease_expires_at, id
 LIMIT 1;

-- extend_run_leases: The process that executes these runs is alive, and will say so again before the time is over.
UPDATE {schema}.runs r
   SET lease_expires_at = clock_timestamp() + $3::interval
  FROM unnest($1::uuid[], $2::text[]) AS mine (thread_id, id)
 WHERE r.thread_id = mine.thread_id AND r.id = mine.id AND r.status = 'running';

-- list_orphaned_runs: Runs of these apps whose process fell silent; they were released already, or soon will be.
SELECT thread_id, id FROM {schema}.runs
 WHERE app_name = ANY ($1::text[]) AND started_at IS NOT NULL AND status IN ('pending', 'running')
   AND ((status = 'running' AND lease_expires_at < clock_timestamp()) OR status = 'pending')
 ORDER BY created_at
 LIMIT 100;

-- find_newest_message: How far a client has come that knows these messages.
SELECT coalesce(max(sequence_num), 0) FROM {schema}.messages WHERE thread_id = $1 AND id = ANY ($2::text[]);
