-- read_thread_heads: How far each of these threads has come, and whether a message is being streamed in it.
SELECT t.id, t.last_sequence,
       EXISTS (SELECT FROM {schema}.message_streams s WHERE s.thread_id = t.id AND s.status = 'streaming') AS is_streaming
  FROM {schema}.threads t WHERE t.id = ANY ($1);

-- read_stream_start: The thread's head, and whether one of these events, a stream's message, is stored already.
SELECT t.last_sequence,
       EXISTS (SELECT FROM unnest($2::text[]) AS asked (id)
                 JOIN {schema}.events e ON e.thread_id = t.id AND md5(e.id) = md5(asked.id) AND e.id = asked.id) AS is_stored
  FROM {schema}.threads t WHERE t.id = $1;

-- read_events_of_threads: The events after what was delivered last, for all threads that rang, each in order; the long
-- columns of large events are left null (`read_events`).
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $4 THEN e.id END AS id, CASE WHEN e.bytes <= $4 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $4 THEN e.author END AS author,
       CASE WHEN e.bytes <= $4 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $4 THEN e.actions::text END AS actions
  FROM unnest($1::uuid[], $2::bigint[]) AS asked (thread_id, after)
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.events
         WHERE thread_id = asked.thread_id AND sequence_num > asked.after
         ORDER BY sequence_num
         LIMIT $3) e
 ORDER BY e.thread_id, e.sequence_num
 LIMIT $3;

-- find_run: Where a run takes place, and behind which event it begins; in a given thread, else in the newest with one.
SELECT t.id AS thread_id,
       COALESCE((SELECT min(e.sequence_num) - 1 FROM {schema}.events e WHERE e.run_id = $1 AND e.thread_id = t.id),
                t.last_sequence) AS begins_after
  FROM {schema}.threads t
 WHERE t.id = (
        SELECT thread_id FROM (
            SELECT thread_id FROM {schema}.runs WHERE id = $1
            UNION
            SELECT thread_id FROM {schema}.events WHERE run_id = $1
        ) found WHERE $2::uuid IS NULL OR thread_id = $2 ORDER BY thread_id DESC LIMIT 1);

-- find_existing_runs: Which of these runs there are by now.
SELECT DISTINCT asked.run_id
  FROM unnest($1::text[]) AS asked (run_id)
 WHERE EXISTS (SELECT FROM {schema}.runs WHERE id = asked.run_id)
    OR EXISTS (SELECT FROM {schema}.events WHERE run_id = asked.run_id);

-- notify: Rings a channel.
SELECT pg_notify($1, $2);
