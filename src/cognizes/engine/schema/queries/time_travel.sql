-- take_snapshot: Store the present state as a snapshot.
SELECT {schema}.take_snapshot($1);

-- find_past: Find the sequence number of a moment in the past, and the head of the thread.
SELECT t.last_sequence, t.version,
       CASE
           WHEN $2::bigint IS NOT NULL THEN $2
           ELSE coalesce((SELECT max(e.sequence_num) FROM {schema}.events e
                           WHERE e.thread_id = t.id AND e.changes_state AND e.version <= $3), 0)
       END AS sequence_num
  FROM {schema}.threads t
 WHERE t.id = $1;

-- read_past: Read the parts of a past state: the nearest snapshot, the deltas after it, and the writes to wider scopes up to the
-- event, of this thread by sequence number, of others by write number. The row `thread` exists while the thread does. The row
-- `expired` says that a write to a wider scope that the moment needs was folded into a later one. At most $6 deltas and writes
-- of each scope, after the keys $3 (null: the snapshot), $4 and $5; documents larger than $7 are null
-- (`read_past_documents`). PostgreSQL does not tell the size of compressed JSON without reading it: 256 times the stored
-- size is an upper bound.
WITH thread AS (
    SELECT id, app_name, user_id, began_at, began_number FROM {schema}.threads WHERE id = $1
), moment AS (
    SELECT began_number AS number, began_at AS at FROM thread WHERE $2 = 0
    UNION ALL
    SELECT e.write_number, e.created_at FROM {schema}.events e WHERE e.thread_id = $1 AND e.sequence_num = $2
), newest AS (
    SELECT version, sequence_num, state FROM {schema}.snapshots
     WHERE thread_id = $1 AND sequence_num <= $2
     ORDER BY sequence_num DESC, version DESC LIMIT 1
), base AS (
    SELECT * FROM newest
    UNION ALL
    SELECT 1, 0, state FROM {schema}.threads
     WHERE id = $1 AND is_as_created AND NOT EXISTS (SELECT FROM newest)
)
SELECT 'thread' AS kind, 0 AS version, 0 AS key, 0 AS bytes, NULL::text AS document FROM thread
UNION ALL
SELECT 'expired', 0, 0, 0, NULL
  FROM thread
 CROSS JOIN moment
 CROSS JOIN LATERAL (VALUES ('user', thread.user_id), ('app', '')) AS wider (scope, user_id)
 CROSS JOIN LATERAL (
        SELECT s.is_folded, s.write_number, s.created_at FROM {schema}.state_writes s
         WHERE s.app_name = thread.app_name AND s.scope = wider.scope AND s.user_id = wider.user_id
         ORDER BY s.version
         LIMIT 1) first
 WHERE first.is_folded
   AND NOT {schema}.is_written_by(first.write_number, first.created_at, moment.number, moment.at)
UNION ALL
SELECT 'snapshot', version, 0, 0, state::text FROM base WHERE $3::bigint IS NULL
UNION ALL
(SELECT 'delta', e.version, e.sequence_num, e.bytes, CASE WHEN e.bytes <= $7 THEN e.actions::text END
   FROM {schema}.events e
  WHERE e.thread_id = $1 AND e.changes_state AND e.sequence_num <= $2
    AND e.sequence_num > coalesce($3::bigint, (SELECT sequence_num FROM base), 0)
  ORDER BY e.sequence_num
  LIMIT $6)
UNION ALL
SELECT w.scope, w.version, w.version, w.bytes, CASE WHEN w.bytes <= $7 THEN w.delta::text END
  FROM thread
 CROSS JOIN moment
 CROSS JOIN (VALUES ('user', $4::bigint), ('app', $5::bigint)) AS wider (scope, after)
 CROSS JOIN LATERAL (
        SELECT s.scope, s.version, s.delta,
               pg_column_size(s.delta) * CASE WHEN pg_column_compression(s.delta) IS NULL THEN 1 ELSE 256 END AS bytes
          FROM {schema}.state_writes s
         WHERE s.app_name = thread.app_name AND s.scope = wider.scope
           AND CASE WHEN s.thread_id = thread.id THEN s.sequence_num <= $2
                    ELSE {schema}.is_written_by(s.write_number, s.created_at, moment.number, moment.at) END
           AND s.user_id = CASE wider.scope WHEN 'user' THEN thread.user_id ELSE '' END AND s.version > wider.after
         ORDER BY s.version
         LIMIT $6) w
ORDER BY version;

-- read_past_documents: Read the deltas of a thread, or the writes to one of its wider scopes, by their keys.
SELECT sequence_num AS key, actions::text AS document
  FROM {schema}.events
 WHERE $2::text = 'delta' AND thread_id = $1 AND sequence_num = ANY ($3::bigint[])
UNION ALL
SELECT w.version, w.delta::text
  FROM {schema}.threads t
  JOIN {schema}.state_writes w ON w.app_name = t.app_name AND w.scope = $2
   AND w.user_id = CASE $2 WHEN 'user' THEN t.user_id ELSE '' END
 WHERE t.id = $1 AND w.version = ANY ($3::bigint[]);

-- read_state_history: Read a page of the events that changed state after a version, oldest first.
SELECT sequence_num, bytes, run_id, version, created_at, CASE WHEN bytes <= $4 THEN id END AS id,
       CASE WHEN bytes <= $4 THEN author END AS author, CASE WHEN bytes <= $4 THEN actions::text END AS actions
  FROM {schema}.events
 WHERE thread_id = $1 AND changes_state AND version > $2
 ORDER BY version
 LIMIT $3;

-- read_scope_writes: Read a page of the newest writes to a key of a user's or an app's state before a version, with their
-- events, newest first. For one user ($5) threads and events of other users are null: the value belongs to the app, the
-- thread does not.
SELECT w.version, size.bytes, w.created_at, e.run_id,
       CASE WHEN $5::text IS NULL OR t.user_id = $5 THEN w.thread_id END AS thread_id,
       CASE WHEN $5::text IS NULL OR t.user_id = $5 THEN w.sequence_num END AS sequence_num,
       CASE WHEN size.bytes <= $8 THEN (w.delta -> $4)::text END AS value,
       CASE WHEN size.bytes <= $8 THEN e.id END AS event_id, CASE WHEN size.bytes <= $8 THEN e.author END AS author
  FROM {schema}.state_writes w
  LEFT JOIN {schema}.threads t ON t.id = w.thread_id
  LEFT JOIN {schema}.events e
    ON e.thread_id = w.thread_id AND e.sequence_num = w.sequence_num AND ($5::text IS NULL OR t.user_id = $5)
 CROSS JOIN LATERAL (
        SELECT coalesce(octet_length(e.id) + octet_length(e.author), 0)
               + pg_column_size(w.delta) * CASE WHEN pg_column_compression(w.delta) IS NULL THEN 1 ELSE 256 END AS bytes
       ) size
 WHERE w.app_name = $1 AND w.scope = $2 AND w.user_id = $3 AND w.delta ? $4 AND w.version < $6
 ORDER BY w.version DESC
 LIMIT $7;

-- read_scope_writes_at: Read the writes of these versions, whole.
SELECT w.version, w.created_at, e.run_id, (w.delta -> $4)::text AS value, e.id AS event_id, e.author,
       CASE WHEN $5::text IS NULL OR t.user_id = $5 THEN w.thread_id END AS thread_id,
       CASE WHEN $5::text IS NULL OR t.user_id = $5 THEN w.sequence_num END AS sequence_num
  FROM {schema}.state_writes w
  LEFT JOIN {schema}.threads t ON t.id = w.thread_id
  LEFT JOIN {schema}.events e
    ON e.thread_id = w.thread_id AND e.sequence_num = w.sequence_num AND ($5::text IS NULL OR t.user_id = $5)
 WHERE w.app_name = $1 AND w.scope = $2 AND w.user_id = $3 AND w.version = ANY ($6::bigint[]);
