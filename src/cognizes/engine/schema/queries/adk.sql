-- adk_read_session: A session with its effective state and the events of its conversation, newest first.
-- Of the thread $4 only the events after $5. With $6 only events from that time on, with $7 at most so many; with $8
-- also the time of the last event. The states stand on the first row only.
SELECT t.id AS thread_id, t.session_id, t.version, t.last_sequence, t.created_at AS thread_created_at,
       CASE WHEN e.place IS NULL OR e.place = 1 THEN t.state::text END AS state,
       CASE WHEN e.place IS NULL OR e.place = 1 THEN u.state::text END AS user_state,
       CASE WHEN e.place IS NULL OR e.place = 1 THEN a.state::text END AS app_state,
       CASE WHEN $8 THEN (
           SELECT {schema}.adk_event_time(last.content::text, last.created_at)
             FROM {schema}.events last
            WHERE last.thread_id = t.id
              AND {schema}.is_conversation(last.event_type, last.changes_state, last.content::text)
            ORDER BY last.sequence_num DESC LIMIT 1)
       END AS last_event_time,
       e.sequence_num, e.id, e.invocation_id, e.author, e.event_type, e.content, e.actions, e.created_at
  FROM {schema}.threads t
  LEFT JOIN {schema}.user_states u ON u.user_id = t.user_id AND u.app_name = t.app_name
  LEFT JOIN {schema}.app_states a ON a.app_name = t.app_name
  LEFT JOIN LATERAL (
      SELECT row_number() OVER (ORDER BY asked.sequence_num DESC) AS place, asked.*
        FROM (
            SELECT sequence_num, id, invocation_id, author, event_type, content::text AS content,
                   actions::text AS actions, created_at
              FROM {schema}.events
             WHERE thread_id = t.id AND sequence_num > CASE WHEN t.id = $4::uuid THEN $5::bigint ELSE 0 END
               AND {schema}.is_conversation(event_type, changes_state, content::text)
               AND ($6::double precision IS NULL OR {schema}.adk_event_time(content::text, created_at) >= $6)
             ORDER BY sequence_num DESC
             LIMIT $7::bigint
        ) asked
  ) e ON true
 WHERE t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5($3) AND t.session_id = $3
 ORDER BY e.sequence_num DESC;

-- adk_read_head: How far a session has come, and the id of the last event of its conversation.
SELECT t.id AS thread_id, t.version, t.last_sequence,
       (SELECT e.id FROM {schema}.events e
         WHERE e.thread_id = t.id AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
         ORDER BY e.sequence_num DESC LIMIT 1) AS last_event_id
  FROM {schema}.threads t
 WHERE t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5($3) AND t.session_id = $3;

-- adk_list_sessions: All sessions of a user, or of an app, by the time of their last event, oldest first.
-- A user's state stands on the first of its rows only, the app's on the first row.
WITH listed AS (
    SELECT t.id, t.session_id, t.user_id, t.state, t.version, t.last_sequence,
           coalesce((SELECT {schema}.adk_event_time(e.content::text, e.created_at)
                       FROM {schema}.events e
                      WHERE e.thread_id = t.id
                        AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
                      ORDER BY e.sequence_num DESC LIMIT 1),
                    extract(epoch FROM t.created_at)::double precision) AS last_update_time
      FROM {schema}.threads t
     WHERE t.app_name = $1 AND ($2::text IS NULL OR t.user_id = $2)
), placed AS (
    SELECT *, row_number() OVER (ORDER BY last_update_time, user_id, session_id) AS place,
           row_number() OVER (PARTITION BY user_id ORDER BY last_update_time, session_id) AS place_of_user
      FROM listed
)
SELECT p.id AS thread_id, p.session_id, p.user_id, p.state::text AS state, p.version, p.last_sequence,
       p.last_update_time,
       CASE WHEN p.place_of_user = 1 THEN u.state::text END AS user_state,
       CASE WHEN p.place = 1 THEN a.state::text END AS app_state
  FROM placed p
  LEFT JOIN {schema}.user_states u ON p.place_of_user = 1 AND u.user_id = p.user_id AND u.app_name = $1
  LEFT JOIN {schema}.app_states a ON p.place = 1 AND a.app_name = $1
 ORDER BY p.place;

-- adk_prune_sessions: Removes the sessions of an app that nobody has touched for a while; returns how many.
WITH gone AS (
    DELETE FROM {schema}.threads WHERE app_name = $1 AND updated_at < now() - $2::interval RETURNING 1
)
SELECT count(*) FROM gone;

-- adk_import_events: Events of a session that happened elsewhere, and the state after them.
SELECT {schema}.import_events(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::text::jsonb, $15, $16);

-- adk_import_app_state: The keys of an app's state that are not there yet.
SELECT {schema}.merge_app_state($1, missing.state, NULL, NULL, $3)
  FROM (SELECT jsonb_object_agg(new.key, new.value) AS state
          FROM jsonb_each($2::text::jsonb) AS new
         WHERE NOT EXISTS (SELECT FROM {schema}.app_states s WHERE s.app_name = $1 AND s.state ? new.key)) AS missing
 WHERE missing.state IS NOT NULL;

-- adk_import_user_state: The keys of a user's state that are not there yet.
SELECT {schema}.merge_user_state($1, $2, missing.state, NULL, NULL, $4)
  FROM (SELECT jsonb_object_agg(new.key, new.value) AS state
          FROM jsonb_each($3::text::jsonb) AS new
         WHERE NOT EXISTS (SELECT FROM {schema}.user_states s
                            WHERE s.app_name = $1 AND s.user_id = $2 AND s.state ? new.key)) AS missing
 WHERE missing.state IS NOT NULL;
