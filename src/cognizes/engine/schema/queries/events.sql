-- read_events: Read a page of events after a sequence number, oldest first. Large columns are null (`read_events_at`).
SELECT sequence_num, bytes, thread_id, run_id, event_type, version, created_at,
       CASE WHEN bytes <= $4 THEN id END AS id, CASE WHEN bytes <= $4 THEN invocation_id END AS invocation_id,
       CASE WHEN bytes <= $4 THEN author END AS author, CASE WHEN bytes <= $4 THEN content::text END AS content,
       CASE WHEN bytes <= $4 THEN actions::text END AS actions
  FROM {schema}.events
 WHERE thread_id = $1 AND sequence_num > $2
 ORDER BY sequence_num
 LIMIT $3;

-- read_recent_events: Read a page of the newest events before a sequence number, newest first.
SELECT sequence_num, bytes, thread_id, run_id, event_type, version, created_at,
       CASE WHEN bytes <= $4 THEN id END AS id, CASE WHEN bytes <= $4 THEN invocation_id END AS invocation_id,
       CASE WHEN bytes <= $4 THEN author END AS author, CASE WHEN bytes <= $4 THEN content::text END AS content,
       CASE WHEN bytes <= $4 THEN actions::text END AS actions
  FROM {schema}.events
 WHERE thread_id = $1 AND sequence_num < $2
 ORDER BY sequence_num DESC
 LIMIT $3;

-- read_events_at: Read the events of these sequence numbers, whole.
SELECT sequence_num, bytes, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
       actions::text AS actions, version, created_at
  FROM {schema}.events
 WHERE thread_id = $1 AND sequence_num = ANY ($2::bigint[]);

-- read_event: Read one event by its id.
SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
       actions::text AS actions, version, created_at
  FROM {schema}.events
 WHERE thread_id = $1 AND md5(id) = md5($2) AND id = $2;

-- find_events: Read a page of events by their ids, in the order of the ids.
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $4 THEN e.id END AS id, CASE WHEN e.bytes <= $4 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $4 THEN e.author END AS author,
       CASE WHEN e.bytes <= $4 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $4 THEN e.actions::text END AS actions
  FROM unnest($2::text[]) WITH ORDINALITY AS asked (id, place)
  JOIN {schema}.events e ON e.thread_id = $1 AND md5(e.id) = md5(asked.id) AND e.id = asked.id
 ORDER BY asked.place
 LIMIT $3;

-- read_messages: Read a page of messages after one sequence number and up to another, oldest first.
SELECT sequence_num, size.bytes, thread_id, role, created_at, CASE WHEN size.bytes <= $5 THEN id END AS id,
       CASE WHEN size.bytes <= $5 THEN event_id END AS event_id, CASE WHEN size.bytes <= $5 THEN content END AS content,
       CASE WHEN size.bytes <= $5 THEN metadata::text END AS metadata
  FROM {schema}.messages
 CROSS JOIN LATERAL (SELECT octet_length(content) + octet_length(id) + octet_length(event_id)
                            + pg_column_size(metadata) AS bytes) size
 WHERE thread_id = $1 AND sequence_num > $2 AND sequence_num <= $3
 ORDER BY sequence_num
 LIMIT $4;

-- read_messages_at: Read the messages of these sequence numbers, whole.
SELECT sequence_num, id, thread_id, event_id, role, content, metadata::text AS metadata, created_at
  FROM {schema}.messages
 WHERE thread_id = $1 AND sequence_num = ANY ($2::bigint[]);

-- read_thread_head: Read the head of a thread, and whether a message is being streamed in it.
SELECT t.last_sequence, t.version,
       EXISTS (SELECT FROM {schema}.message_streams s WHERE s.thread_id = t.id AND s.status = 'streaming') AS is_streaming
  FROM {schema}.threads t WHERE t.id = $1;
