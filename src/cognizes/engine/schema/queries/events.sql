-- read_events: Oldest first, after a sequence number.
SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
       actions::text AS actions, version, created_at
  FROM {schema}.events
 WHERE thread_id = $1 AND sequence_num > $2
 ORDER BY sequence_num
 LIMIT $3;

-- read_recent_events: The newest ones; the caller turns them round.
SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
       actions::text AS actions, version, created_at
  FROM {schema}.events
 WHERE thread_id = $1
 ORDER BY sequence_num DESC
 LIMIT $2;

-- read_event: One event by its id.
SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
       actions::text AS actions, version, created_at
  FROM {schema}.events
 WHERE thread_id = $1 AND md5(id) = md5($2) AND id = $2;

-- read_messages: Oldest first, after one sequence number and up to another.
SELECT id, thread_id, event_id, sequence_num, role, content, metadata::text AS metadata, created_at
  FROM {schema}.messages
 WHERE thread_id = $1 AND sequence_num > $2 AND sequence_num <= $3
 ORDER BY sequence_num
 LIMIT $4;

-- read_thread_head: How far a thread has come, and whether a message is being streamed in it.
SELECT t.last_sequence, t.version,
       EXISTS (SELECT FROM {schema}.message_streams s WHERE s.thread_id = t.id AND s.status = 'streaming') AS is_streaming
  FROM {schema}.threads t WHERE t.id = $1;
