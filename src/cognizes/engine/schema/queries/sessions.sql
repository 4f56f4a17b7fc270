-- append_event: Append one event. Documents are text: the pool needs no codec.
SELECT * FROM {schema}.append_event(
    $1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, $9::text::jsonb, $10::text::jsonb, $11::text::jsonb,
    $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26::text::json);

-- append_events: Append a batch of events.
SELECT * FROM {schema}.append_events(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27);

-- create_sessions: Create a batch of sessions.
SELECT * FROM {schema}.create_sessions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- find_thread: Find the thread of a session id.
SELECT id FROM {schema}.threads WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($3) AND session_id = $3;

-- find_context: Find the thread of a thread id, else up to two threads of a session id, among those of some apps and of a
-- user. Two rows mean that the session id is not unique.
(SELECT id FROM {schema}.threads
  WHERE id = $2 AND ($3::text[] IS NULL OR app_name = ANY ($3)) AND ($4::text IS NULL OR user_id = $4))
UNION ALL
(SELECT id FROM {schema}.threads
  WHERE md5(session_id) = md5($1) AND session_id = $1
    AND ($3::text[] IS NULL OR app_name = ANY ($3)) AND ($4::text IS NULL OR user_id = $4)
    AND NOT EXISTS (SELECT FROM {schema}.threads
                     WHERE id = $2 AND ($3::text[] IS NULL OR app_name = ANY ($3)) AND ($4::text IS NULL OR user_id = $4))
  LIMIT 2);

-- read_session: Read a session with its effective state, by its session id.
SELECT t.id, t.session_id, t.app_name, t.user_id, t.title, t.metadata::text AS metadata, t.version, t.last_sequence,
       t.created_at, t.updated_at, t.state::text AS state, u.state::text AS user_state, a.state::text AS app_state,
       coalesce(u.version, 0) AS user_version, coalesce(a.version, 0) AS app_version
  FROM {schema}.threads t
  LEFT JOIN {schema}.user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
  LEFT JOIN {schema}.app_states a ON a.app_name = t.app_name
 WHERE t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5($3) AND t.session_id = $3;

-- read_thread: Read a session with its effective state, by its thread id.
SELECT t.id, t.session_id, t.app_name, t.user_id, t.title, t.metadata::text AS metadata, t.version, t.last_sequence,
       t.created_at, t.updated_at, t.state::text AS state, u.state::text AS user_state, a.state::text AS app_state,
       coalesce(u.version, 0) AS user_version, coalesce(a.version, 0) AS app_version
  FROM {schema}.threads t
  LEFT JOIN {schema}.user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
  LEFT JOIN {schema}.app_states a ON a.app_name = t.app_name
 WHERE t.id = $1;

-- list_sessions: Read a page of sessions after a cursor, newest activity first. A null user means all users of the app.
SELECT t.id, size.bytes, t.app_name, t.user_id, t.version, t.last_sequence, t.created_at, t.updated_at,
       CASE WHEN size.bytes <= $7 THEN t.session_id END AS session_id, CASE WHEN size.bytes <= $7 THEN t.title END AS title,
       CASE WHEN size.bytes <= $7 THEN t.metadata::text END AS metadata,
       CASE WHEN NOT $5 THEN '{}' WHEN size.bytes <= $7 THEN t.state::text END AS state,
       CASE WHEN $5 AND size.bytes <= $7 THEN u.state::text END AS user_state,
       CASE WHEN $5 AND size.bytes <= $7 THEN a.state::text END AS app_state,
       coalesce(u.version, -1) AS user_version, coalesce(a.version, -1) AS app_version
  FROM {schema}.threads t
  LEFT JOIN {schema}.user_states u ON $5 AND u.user_id = t.user_id AND u.app_name = t.app_name
  LEFT JOIN {schema}.app_states a ON $5 AND a.app_name = t.app_name
 CROSS JOIN LATERAL (
        SELECT octet_length(t.session_id) + coalesce(octet_length(t.title), 0)
               + CASE WHEN pg_column_compression(t.metadata) IS NULL THEN pg_column_size(t.metadata)
                      ELSE octet_length(t.metadata::text) END
               + CASE WHEN $5 THEN pg_column_size(t.state) + coalesce(pg_column_size(u.state), 0)
                                   + coalesce(pg_column_size(a.state), 0) ELSE 0 END AS bytes) size
 WHERE t.app_name = $1 AND ($2::text IS NULL OR t.user_id = $2)
   AND ($3::timestamptz IS NULL OR (t.updated_at, t.id) < ($3, $4::uuid))
 ORDER BY t.updated_at DESC, t.id DESC
 LIMIT $6;

-- list_sessions_at: Read the sessions of these threads, whole.
SELECT t.id, t.session_id, t.app_name, t.user_id, t.title, t.metadata::text AS metadata, t.version, t.last_sequence,
       t.created_at, t.updated_at, CASE WHEN $1 THEN t.state::text ELSE '{}' END AS state,
       CASE WHEN $1 THEN u.state::text END AS user_state, CASE WHEN $1 THEN a.state::text END AS app_state,
       coalesce(u.version, -1) AS user_version, coalesce(a.version, -1) AS app_version
  FROM {schema}.threads t
  LEFT JOIN {schema}.user_states u ON $1 AND u.user_id = t.user_id AND u.app_name = t.app_name
  LEFT JOIN {schema}.app_states a ON $1 AND a.app_name = t.app_name
 WHERE t.id = ANY ($2::uuid[]);

-- change_session: Change title and metadata, with an event.
SELECT {schema}.change_session($1, $2, $3::text::jsonb, $4, $5::text::json);

-- delete_session: Delete a thread with its dependent rows; a trigger deletes those that refer to the session id.
DELETE FROM {schema}.threads
 WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($3) AND session_id = $3
RETURNING id;

-- delete_thread: Delete a thread by its thread id.
DELETE FROM {schema}.threads WHERE id = $1 RETURNING id;

-- fork_session: Create a session with the past of another one.
SELECT * FROM {schema}.fork_session($1, $2, $3, $4, $5::text::jsonb, $6);

-- read_user_state: Read the state of a user.
SELECT state::text FROM {schema}.user_states WHERE user_id = $2 AND app_name = $1;
