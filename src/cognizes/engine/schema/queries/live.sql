-- read_feed_heads: Read the head of each thread and its open streams; with the flag also streams that ended within an
-- interval. A thread without streams has one row. `stored_sequence` is set if the message of an open stream is stored,
-- `event_id` if the id of an event is asked for: of sequence `event_at`, or of the newest one if that is negative.
SELECT t.id, t.last_sequence,
       (SELECT e.id FROM {schema}.events e
         WHERE e.thread_id = t.id
           AND e.sequence_num = CASE WHEN asked.event_at < 0 THEN t.last_sequence ELSE asked.event_at END) AS event_id,
       s.thread_id, s.message_id, s.role, s.author, s.run_id, s.status, s.owner, s.final_sequence,
       s.began_after, s.stored_sequence
  FROM unnest($1::uuid[], $2::boolean[], $4::bigint[]) AS asked (thread_id, with_ended, event_at)
  JOIN {schema}.threads t ON t.id = asked.thread_id
  LEFT JOIN LATERAL (
        SELECT o.thread_id, o.message_id, o.role, o.author, o.run_id, o.status, o.owner, o.final_sequence, o.began_after,
               o.created_at, (
                   SELECT max(e.sequence_num) FROM {schema}.events e
                    WHERE e.thread_id = o.thread_id
                      AND md5(e.id) IN (md5(o.message_id), md5(regexp_replace(o.message_id, '/(thought|call/.*)$', '')))
               ) AS stored_sequence
          FROM {schema}.message_streams o
         WHERE o.thread_id = asked.thread_id AND o.status = 'streaming'
        UNION ALL
        SELECT e.thread_id, e.message_id, e.role, e.author, e.run_id, e.status, e.owner, e.final_sequence, e.began_after,
               e.created_at, NULL
          FROM {schema}.message_streams e
         WHERE asked.with_ended AND e.thread_id = asked.thread_id AND e.ended_at > clock_timestamp() - $3::interval
       ) s ON true
 ORDER BY t.id, s.created_at;

-- read_events_of_threads: Read the events after a sequence for many threads, each in order. The long columns of large
-- events are null (`read_events` reads them). `follows` is false if the event at that sequence has not the given id.
SELECT checked.follows, e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $4 THEN e.id END AS id, CASE WHEN e.bytes <= $4 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $4 THEN e.author END AS author,
       CASE WHEN e.bytes <= $4 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $4 THEN e.actions::text END AS actions
  FROM unnest($1::uuid[], $2::bigint[], $5::text[]) AS asked (thread_id, after, event_id)
 CROSS JOIN LATERAL (
        SELECT asked.event_id IS NULL OR EXISTS (
                   SELECT FROM {schema}.events
                    WHERE thread_id = asked.thread_id AND sequence_num = asked.after AND id = asked.event_id) AS follows
        OFFSET 0) checked
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.events
         WHERE thread_id = asked.thread_id AND sequence_num > asked.after
         ORDER BY sequence_num
         LIMIT $3) e
 ORDER BY e.thread_id, e.sequence_num
 LIMIT $3;

-- find_run: Find the thread of a run and the sequence before its first event; in a given thread, else in the newest one.
-- A thread whose events only name the run comes last: an end user writes such events.
SELECT t.id AS thread_id,
       COALESCE((SELECT min(e.sequence_num) - 1 FROM {schema}.events e WHERE e.run_id = $1 AND e.thread_id = t.id),
                t.last_sequence) AS begins_after
  FROM {schema}.threads t
 WHERE t.id = (
        SELECT thread_id FROM (
            SELECT thread_id, true AS is_stored FROM {schema}.runs WHERE id = $1
            UNION ALL
            SELECT thread_id, false FROM {schema}.events WHERE run_id = $1
        ) found WHERE $2::uuid IS NULL OR thread_id = $2 ORDER BY is_stored DESC, thread_id DESC LIMIT 1);

-- find_existing_runs: Return which of these runs exist.
SELECT DISTINCT asked.run_id
  FROM unnest($1::text[]) AS asked (run_id)
 WHERE EXISTS (SELECT FROM {schema}.runs WHERE id = asked.run_id)
    OR EXISTS (SELECT FROM {schema}.events WHERE run_id = asked.run_id);

-- notify: Send a notification on a channel of the engine.
SELECT pg_notify($1::text || '{channel_suffix}', $2);

-- notify_many: Send notifications on channels of the engine, in order, in a transaction that does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true)
UNION ALL
SELECT pg_notify(channel || '{channel_suffix}', payload)::text
  FROM unnest($1::text[], $2::text[]) AS notification (channel, payload);
