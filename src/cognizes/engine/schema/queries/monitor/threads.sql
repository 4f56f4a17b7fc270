-- find_threads: Find threads of all apps, newest activity first. There is no index on `updated_at`, because every append
-- would write it: without an app the narrow columns of the table are scanned (0.2 s for a million threads).
SELECT t.id, t.updated_at
  FROM {schema}.threads t
 WHERE ($1::text IS NULL OR t.app_name = $1) AND ($2::text IS NULL OR t.user_id = $2)
   AND ($3::text IS NULL OR t.title ILIKE $3 OR t.session_id ILIKE $3 OR t.user_id ILIKE $3 OR t.app_name ILIKE $3
        OR t.id = ANY ($8::uuid[]))
   AND ($4::timestamptz IS NULL OR (t.updated_at, t.id) < ($4, $5::uuid))
   AND (NOT $7::boolean OR t.id NOT IN (SELECT r.thread_id FROM {schema}.runs r
                                         WHERE r.status IN ('pending', 'running', 'waiting')))
 ORDER BY t.updated_at DESC, t.id DESC
 LIMIT $6;

-- find_threads_by_run: Find threads with a run in a status, newest activity first, by the index of the runs.
SELECT t.id, t.updated_at
  FROM {schema}.threads t
 WHERE t.id IN (SELECT r.thread_id FROM {schema}.runs r WHERE r.status = $7)
   AND ($1::text IS NULL OR t.app_name = $1) AND ($2::text IS NULL OR t.user_id = $2)
   AND ($3::text IS NULL OR t.title ILIKE $3 OR t.session_id ILIKE $3 OR t.user_id ILIKE $3 OR t.app_name ILIKE $3
        OR t.id = ANY ($8::uuid[]))
   AND ($4::timestamptz IS NULL OR (t.updated_at, t.id) < ($4, $5::uuid))
   AND ($7 <> 'failed' OR 'failed' = (SELECT newest.status FROM {schema}.runs newest WHERE newest.thread_id = t.id
                                       ORDER BY newest.created_at DESC LIMIT 1))
 ORDER BY t.updated_at DESC, t.id DESC
 LIMIT $6;

-- read_thread_summaries: Read what a list shows of each of these threads.
SELECT t.id, left(t.session_id, 1000) AS session_id, t.app_name, t.user_id, left(t.title, 1000) AS title, t.version,
       t.last_sequence, t.created_at, t.updated_at, run.id AS run_id, run.status AS run_status,
       left(said.content, 200) AS last_message, said.role AS last_role, left(first.content, 200) AS first_message
  FROM {schema}.threads t
  LEFT JOIN LATERAL (
        SELECT r.id, r.status FROM {schema}.runs r WHERE r.thread_id = t.id
         ORDER BY r.status IN ('pending', 'running', 'waiting') DESC, r.created_at DESC LIMIT 1) run ON true
  LEFT JOIN LATERAL (
        SELECT m.content, m.role FROM {schema}.messages m WHERE m.thread_id = t.id AND m.role <> 'tool'
         ORDER BY m.sequence_num DESC LIMIT 1) said ON true
  LEFT JOIN LATERAL (
        SELECT m.content FROM {schema}.messages m WHERE m.thread_id = t.id AND m.role IN ('user', 'assistant')
           AND m.content <> ''
         ORDER BY m.sequence_num LIMIT 1) first ON true
 WHERE t.id = ANY ($1)
 ORDER BY t.updated_at DESC, t.id DESC;

-- list_apps: Read the names of all apps, or of those in which a user has threads, each with index lookups.
WITH RECURSIVE app AS (
    (SELECT app_name FROM {schema}.threads ORDER BY app_name LIMIT 1)
    UNION ALL
    SELECT (SELECT t.app_name FROM {schema}.threads t WHERE t.app_name > app.app_name ORDER BY t.app_name LIMIT 1)
      FROM app WHERE app.app_name IS NOT NULL
)
SELECT app_name FROM app
 WHERE app_name IS NOT NULL
   AND ($1::text IS NULL OR EXISTS (SELECT FROM {schema}.threads t WHERE t.app_name = app.app_name AND t.user_id = $1))
 LIMIT 500;

-- find_threads_with_words: Find the threads of an app and a user (null: of all) with a message that contains all these
-- words. PostgreSQL reads the best messages of each app, or of the user in each app.
WITH RECURSIVE app AS (
    SELECT coalesce($1, (SELECT app_name FROM {schema}.threads ORDER BY app_name LIMIT 1)) AS app_name
    UNION ALL
    SELECT (SELECT t.app_name FROM {schema}.threads t WHERE t.app_name > app.app_name ORDER BY t.app_name LIMIT 1)
      FROM app WHERE $1 IS NULL AND app.app_name IS NOT NULL
)
SELECT DISTINCT found.thread_id
  FROM (SELECT app_name FROM app WHERE app_name IS NOT NULL LIMIT 500) app
 CROSS JOIN LATERAL {schema}.find_messages_by_words(app.app_name, $3, NULL, $2, NULL, NULL, NULL, 500) found
 WHERE cardinality(found.matched)
       = (SELECT count(DISTINCT key)
            FROM unnest({schema}.memory_term_keys(app.app_name, coalesce($3, ''), $2)) AS key)
 LIMIT 2000;

-- find_messages_with_text: Find the messages of a thread before an event that contain a text, ignoring case, newest
-- first, each with the text and what is around it.
SELECT m.sequence_num, m.role, substr(m.content, greatest(1, strpos(lower(m.content), lower($2)) - 40), 160) AS excerpt
  FROM {schema}.messages m
 WHERE m.thread_id = $1 AND m.content ILIKE $3 AND ($4::bigint IS NULL OR m.sequence_num < $4)
 ORDER BY m.sequence_num DESC
 LIMIT $5;

-- read_active_path: Read the events of the active branch as ranges of sequence numbers, up to the newest event.
SELECT path.first_sequence, least(path.last_sequence, t.last_sequence) AS last_sequence
  FROM {schema}.threads t, {schema}.branch_path(t.id, NULL) AS path
 WHERE t.id = $1 AND path.first_sequence <= t.last_sequence
 ORDER BY 1;
