-- read_timeline_before: The newest events of these kinds on a branch between two sequence numbers, newest first.
SELECT e.* FROM {schema}.branch_path($1, $2) AS path
 CROSS JOIN LATERAL (
        SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
               actions::text AS actions, version, created_at
          FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= greatest(path.first_sequence, $3::bigint + 1)
           AND sequence_num <= least(path.last_sequence, $4::bigint - 1) AND event_type = ANY ($5)
         ORDER BY sequence_num DESC
         LIMIT $6) e
 ORDER BY e.sequence_num DESC
 LIMIT $6;

-- read_timeline_after: The oldest ones, oldest first.
SELECT e.* FROM {schema}.branch_path($1, $2) AS path
 CROSS JOIN LATERAL (
        SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
               actions::text AS actions, version, created_at
          FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= greatest(path.first_sequence, $3::bigint + 1)
           AND sequence_num <= least(path.last_sequence, $4::bigint - 1) AND event_type = ANY ($5)
         ORDER BY sequence_num
         LIMIT $6) e
 ORDER BY e.sequence_num
 LIMIT $6;

-- thread_exists: Whether there is such a thread.
SELECT EXISTS (SELECT FROM {schema}.threads WHERE id = $1);

-- read_shown_events: The events of the active branch after one, oldest first.
SELECT e.* FROM {schema}.branch_path($1, NULL) AS path
 CROSS JOIN LATERAL (
        SELECT sequence_num, id, thread_id, run_id, invocation_id, author, event_type, content::text AS content,
               actions::text AS actions, version, created_at
          FROM {schema}.events
         WHERE thread_id = $1 AND sequence_num >= greatest(path.first_sequence, $2::bigint + 1)
           AND sequence_num <= path.last_sequence
         ORDER BY sequence_num
         LIMIT $3) e
 ORDER BY e.sequence_num
 LIMIT $3;
