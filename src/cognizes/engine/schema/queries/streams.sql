-- open_stream: Open a stream for a new message.
SELECT * FROM {schema}.open_stream($1, $2, $3, $4, $5, $6, $7, $8);

-- end_stream: Store the message and its event and end the stream in one transaction; refused if the attempt lost its run.
SELECT ended.*
  FROM {schema}.check_fence($1, $14, $15),
       {schema}.end_stream($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12, $13) AS ended;

-- write_chunks: Write the new chunks of all streams of a process.
SELECT place, refusal FROM {schema}.write_chunks($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- append_chunks: Append to a stream without an owning process.
SELECT * FROM {schema}.append_chunks($1, $2, $3, $4, $5, $6, $7);

-- read_chunks: Read the rows after a chunk for many streams, each in order.
SELECT asked.place, c.first_sequence, c.sequence, c.delta, c.lengths
  FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS asked (thread_id, message_id, after, place)
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.message_chunks
         WHERE thread_id = asked.thread_id AND md5(message_id) = md5(asked.message_id) AND sequence > asked.after
         ORDER BY sequence
         LIMIT $4) c
 ORDER BY asked.place, c.sequence;

-- read_chunk_heads: Read the last sequence of each stream.
SELECT asked.place, (SELECT max(sequence) FROM {schema}.message_chunks c
                      WHERE c.thread_id = asked.thread_id AND md5(c.message_id) = md5(asked.message_id)) AS sequence
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS asked (thread_id, message_id, place);

-- find_stream: Find a stream by its message id.
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence, began_after
  FROM {schema}.message_streams
 WHERE thread_id = $1 AND md5(message_id) = md5($2) AND message_id = $2;

-- list_open_streams: List the open streams of some threads.
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence, began_after
  FROM {schema}.message_streams
 WHERE thread_id = ANY ($1::uuid[]) AND status = 'streaming'
 ORDER BY created_at;

-- list_expired_streams: List open streams whose lease expired, the oldest first.
SELECT thread_id, message_id, role, author, run_id, status, owner, final_sequence, began_after
  FROM {schema}.message_streams
 WHERE status = 'streaming' AND lease_expires_at < clock_timestamp()
   -- After a restart of the server, producers need time to extend their leases.
   AND pg_postmaster_start_time() < clock_timestamp() - $1::interval
 ORDER BY lease_expires_at
 LIMIT $2;

-- extend_stream_leases: Extend the leases of streams of a process; return the streams that it still owns.
UPDATE {schema}.message_streams s
   SET lease_expires_at = clock_timestamp() + $4::interval
  FROM unnest($1::uuid[], $2::text[]) AS mine (thread_id, message_id)
 WHERE s.thread_id = mine.thread_id AND md5(s.message_id) = md5(mine.message_id) AND s.owner = $3
   AND s.status = 'streaming'
RETURNING s.thread_id, s.message_id;

-- read_body: Read the text of a message and the lengths of its chunks. Reasoning is stored in its event only.
SELECT m.content, s.status, s.final_sequence, s.chunk_lengths,
       (SELECT e.content::text FROM {schema}.events e
         WHERE s.role = 'thought' AND e.thread_id = s.thread_id AND md5(e.id) = md5(s.message_id)
           AND e.id = s.message_id) AS thought
  FROM (VALUES ($1::uuid, $2::text)) AS asked (thread_id, message_id)
  LEFT JOIN {schema}.messages m
    ON m.thread_id = asked.thread_id AND md5(m.id) = md5(asked.message_id) AND m.id = asked.message_id
  LEFT JOIN {schema}.message_streams s
    ON s.thread_id = asked.thread_id AND md5(s.message_id) = md5(asked.message_id) AND s.message_id = asked.message_id;

-- touch_stream: Extend the lease of a stream without an owner; return whether a producer may append.
WITH touched AS (
    UPDATE {schema}.message_streams
       SET lease_expires_at = clock_timestamp() + $3::interval
     WHERE thread_id = $1 AND md5(message_id) = md5($2) AND message_id = $2 AND owner IS NULL
       AND status = 'streaming' AND lease_expires_at < clock_timestamp() + $3::interval / 2
)
SELECT status, owner, final_sequence
  FROM {schema}.message_streams
 WHERE thread_id = $1 AND md5(message_id) = md5($2) AND message_id = $2;
