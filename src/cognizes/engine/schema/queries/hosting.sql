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

-- save_chunks: What was streamed since the last time, for whoever finds the run orphaned.
INSERT INTO {schema}.message_chunks (thread_id, message_id, sequence, app_name, delta)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[])
ON CONFLICT DO NOTHING;

-- read_unfinished_texts: What was streamed of messages that never became whole, in the order they began.
SELECT c.message_id, string_agg(c.delta, '' ORDER BY c.sequence) AS text
  FROM {schema}.message_chunks c
 WHERE c.thread_id = $1
   AND NOT EXISTS (SELECT FROM {schema}.events e
                    WHERE e.thread_id = c.thread_id AND md5(e.id) = md5(c.message_id) AND e.id = c.message_id)
 GROUP BY c.message_id
 ORDER BY min(c.created_at);

-- drop_chunks: The messages are whole, or will never be.
DELETE FROM {schema}.message_chunks c USING unnest($1::uuid[], $2::text[]) AS done (thread_id, message_id)
 WHERE c.thread_id = done.thread_id AND md5(c.message_id) = md5(done.message_id);

-- find_newest_message: How far a client has come that knows these messages.
SELECT coalesce(max(sequence_num), 0) FROM {schema}.messages WHERE thread_id = $1 AND id = ANY ($2::text[]);
