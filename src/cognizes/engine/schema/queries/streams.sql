-- open_stream: A stream for a message to come.
SELECT * FROM {schema}.open_stream($1, $2, $3, $4, $5, $6, $7, $8);

-- end_stream: The message, its event and the stream's row, in one transaction; refused to a lost attempt at a run.
SELECT ended.*
  FROM {schema}.check_fence($1, $14, $15),
       {schema}.end_stream($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12, $13) AS ended;

-- flush_chunks: What all streams of a process produced since the last time.
SELECT {schema}.flush_chunks($1, $2, $3, $4, $5, $6, $7, $8) AS place;

-- append_chunks: More of a stream that belongs to no process.
SELECT * FROM {schema}.append_chunks($1, $2, $3, $4, $5, $6, $7);

-- read_chunks: The rows that reach behind a chunk, for many streams at once, each in order.
SELECT asked.place, c.first_sequence, c.sequence, c.delta, c.lengths
  FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS asked (thread_id, message_id, after, place)
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.message_chunks
         WHERE thread_id = asked.thread_id AND md5(message_id) = md5(asked.message_id) AND sequence > asked.after
         ORDER BY sequence
         LIMIT $4) c
 ORDER BY asked.place, c.sequence;

-- read_chunk_heads: How far each of these streams was written.
SELECT asked.place, (SELECT max(sequence) FROM {schema}.message_chunks c
                      WHERE c.thread_id = asked.thread_id AND md5(c.message_id) = md5(asked.message_id)) AS sequence
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS asked (thread_id, message_id, place);

-- find_stream: One stream by its message's id.
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence
  FROM {schema}.message_streams
 WHERE thread_id = $1 AND md5(message_id) = md5($2) AND message_id = $2;

-- find_open_streams: Which of these are being streamed.
SELECT s.thread_id, s.message_id
  FROM unnest($1::uuid[], $2::text[]) AS asked (thread_id, message_id)
  JOIN {schema}.message_streams s
    ON s.thread_id = asked.thread_id AND md5(s.message_id) = md5(asked.message_id) AND s.status = 'streaming';

-- list_streams: What is being streamed in these threads, and what ended there within a time.
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence
  FROM {schema}.message_streams
 WHERE thread_id = ANY ($1::uuid[]) AND status = 'streaming'
UNION ALL
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence
  FROM {schema}.message_streams
 WHERE thread_id = ANY ($1::uuid[]) AND ended_at > clock_timestamp() - $2::interval;

-- list_silent_streams: Those whose producer has not been heard of for too long.
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence
  FROM {schema}.message_streams
 WHERE status = 'streaming' AND lease_expires_at < clock_timestamp()
   -- After a restart of the server the living need a moment to say that they are.
   AND pg_postmaster_start_time() < clock_timestamp() - $1::interval
 ORDER BY lease_expires_at
 LIMIT $2;

-- extend_stream_leases: The process that writes these streams is alive. Returns which of them are still its own.
UPDATE {schema}.message_streams s
   SET lease_expires_at = clock_timestamp() + $4::interval
  FROM unnest($1::uuid[], $2::text[]) AS mine (thread_id, message_id)
 WHERE s.thread_id = mine.thread_id AND md5(s.message_id) = md5(mine.message_id) AND s.owner = $3
   AND s.status = 'streaming'
RETURNING s.thread_id, s.message_id;

-- read_body: The text of a message, and how it was cut when it was streamed. A thought is in its event alone.
SELECT m.content, s.status, s.final_sequence, s.chunk_lengths,
       (SELECT e.content::text FROM {schema}.events e
         WHERE s.role = 'thought' AND e.thread_id = s.thread_id AND md5(e.id) = md5(s.message_id)
           AND e.id = s.message_id) AS thought
  FROM (VALUES ($1::uuid, $2::text)) AS asked (thread_id, message_id)
  LEFT JOIN {schema}.messages m
    ON m.thread_id = asked.thread_id AND md5(m.id) = md5(asked.message_id) AND m.id = asked.message_id
  LEFT JOIN {schema}.message_streams s
    ON s.thread_id = asked.thread_id AND md5(s.message_id) = md5(asked.message_id) AND s.message_id = asked.message_id;

-- touch_stream: A producer that holds no object is alive; whether it may append.
WITH touched AS (
    UPDATE {schema}.message_streams
       SET lease_expires_at = clock_timestamp() + $3::interval
     WHERE thread_id = $1 AND md5(message_id) = md5($2) AND message_id = $2 AND owner IS NULL
       AND status = 'streaming' AND lease_expires_at < clock_timestamp() + $3::interval / 2
)
SELECT status, owner, final_sequence
  FROM {schema}.message_streams
 WHERE thread_id = $1 AND md5(message_id) = md5($2) AND message_id = $2;
