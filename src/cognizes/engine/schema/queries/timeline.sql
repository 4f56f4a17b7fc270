-- read_timeline_before: Read a page of the newest events of the given kinds on a branch between two sequence numbers,
-- newest first.
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $7 THEN e.id END AS id, CASE WHEN e.bytes <= $7 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $7 THEN e.author END AS author,
       CASE WHEN e.bytes <= $7 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $7 THEN e.actions::text END AS actions
  FROM {schema}.branch_path($1, $2) AS path
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= greatest(path.first_sequence, $3::bigint + 1)
           AND sequence_num <= least(path.last_sequence, $4::bigint - 1) AND event_type = ANY ($5)
         ORDER BY sequence_num DESC
         LIMIT $6) e
 ORDER BY e.sequence_num DESC
 LIMIT $6;

-- read_timeline_after: Read a page of the oldest events of the given kinds on a branch between two sequence numbers,
-- oldest first.
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $7 THEN e.id END AS id, CASE WHEN e.bytes <= $7 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $7 THEN e.author END AS author,
       CASE WHEN e.bytes <= $7 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $7 THEN e.actions::text END AS actions
  FROM {schema}.branch_path($1, $2) AS path
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= greatest(path.first_sequence, $3::bigint + 1)
           AND sequence_num <= least(path.last_sequence, $4::bigint - 1) AND event_type = ANY ($5)
         ORDER BY sequence_num
         LIMIT $6) e
 ORDER BY e.sequence_num
 LIMIT $6;

-- thread_exists: Return whether a thread exists.
SELECT EXISTS (SELECT FROM {schema}.threads WHERE id = $1);

-- read_shown_events: Read a page of the events of the active branch after a sequence number, oldest first.
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at,
       CASE WHEN e.bytes <= $4 THEN e.id END AS id, CASE WHEN e.bytes <= $4 THEN e.invocation_id END AS invocation_id,
       CASE WHEN e.bytes <= $4 THEN e.author END AS author,
       CASE WHEN e.bytes <= $4 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $4 THEN e.actions::text END AS actions
  FROM {schema}.branch_path($1, NULL) AS path
 CROSS JOIN LATERAL (
        SELECT * FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= greatest(path.first_sequence, $2::bigint + 1)
           AND sequence_num <= path.last_sequence
         ORDER BY sequence_num
         LIMIT $3) e
 ORDER BY e.sequence_num
 LIMIT $3;

-- read_recent_shown_events: Read a page of the newest events of the active branch before a sequence number, newest first.
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
         ORDER BY sequence_num DESC
         LIMIT $3) e
 ORDER BY e.sequence_num DESC
 LIMIT $3;
