-- read_key_writes: Read a page of state changes before a version whose text contains a key, newest first; null: all keys.
SELECT sequence_num, bytes, run_id, version, created_at, CASE WHEN bytes <= $5 THEN id END AS id,
       CASE WHEN bytes <= $5 THEN author END AS author, CASE WHEN bytes <= $5 THEN actions::text END AS actions
  FROM {schema}.events
 WHERE thread_id = $1 AND changes_state AND version < $2
   AND ($3::text IS NULL OR strpos(actions::text, $3) > 0)
 ORDER BY version DESC
 LIMIT $4;
