-- take_snapshot: Keeps the state as it is now.
SELECT {schema}.take_snapshot($1);

-- find_past: The sequence number and version that a question about the past means.
SELECT t.last_sequence, t.version,
       CASE
           WHEN $2::bigint IS NOT NULL THEN $2
           ELSE coalesce((SELECT max(e.sequence_num) FROM {schema}.events e
                           WHERE e.thread_id = t.id AND e.changes_state AND e.version <= $3), 0)
       END AS sequence_num
  FROM {schema}.threads t
 WHERE t.id = $1;

-- read_past: What the past is made of: the nearest snapshot, the deltas after it, and the writes to wider scopes
-- up to the event: of this thread by sequence number, of others by write number. The row `thread` is there as long as the thread is.
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
SELECT 'thread' AS kind, 0 AS version, NULL::text AS document FROM thread
UNION ALL
SELECT 'snapshot', version, state::text FROM base
UNION ALL
SELECT 'delta', e.version, e.actions::text
  FROM {schema}.events e
 WHERE e.thread_id = $1 AND e.changes_state AND e.sequence_num <= $2
   AND e.sequence_num > coalesce((SELECT sequence_num FROM base), 0)
UNION ALL
SELECT w.scope, w.version, w.delta::text
  FROM thread
 CROSS JOIN moment
 CROSS JOIN (VALUES ('user'), ('app')) AS wider (scope)
  JOIN {schema}.state_writes w
    ON w.app_name = thread.app_name AND w.scope = wider.scope
   AND w.user_id = CASE wider.scope WHEN 'user' THEN thread.user_id ELSE '' END
   AND CASE WHEN w.thread_id = thread.id THEN w.sequence_num <= $2
            ELSE {schema}.is_written_by(w.write_number, w.created_at, moment.number, moment.at) END
ORDER BY version;

-- read_state_history: Every event that changed state, oldest first.
SELECT sequence_num, id, author, run_id, version, created_at, actions::text AS actions
  FROM {schema}.events
 WHERE thread_id = $1 AND changes_state AND version > $2
 ORDER BY version
 LIMIT $3;

-- read_scope_writes: Every write to a user's or an app's state, oldest first, with its event. For one user ($6) the
-- threads of other users stay unnamed: what they wrote is the app's, where and by whom is theirs.
SELECT w.version, w.delta::text AS delta, w.created_at, e.id AS event_id, e.author, e.run_id,
       CASE WHEN $6::text IS NULL OR t.user_id = $6 THEN w.thread_id END AS thread_id,
       CASE WHEN $6::text IS NULL OR t.user_id = $6 THEN w.sequence_num END AS sequence_num
  FROM {schema}.state_writes w
  LEFT JOIN {schema}.threads t ON t.id = w.thread_id
  LEFT JOIN {schema}.events e
    ON e.thread_id = w.thread_id AND e.sequence_num = w.sequence_num AND ($6::text IS NULL OR t.user_id = $6)
 WHERE w.app_name = $1 AND w.scope = $2 AND w.user_id = $3 AND w.delta ? $4
 ORDER BY w.version
 LIMIT $5;
