-- adk_read_session: Read a session with its effective state and the events that the caller does not know.
SELECT * FROM {schema}.adk_read_session($1, $2, $3, $4, $5, $6, $7, $8);

-- adk_read_head: Read the version and last sequence number of a session, and the id of the last event of its conversation.
SELECT t.id AS thread_id, t.version, t.last_sequence,
       (SELECT e.id FROM {schema}.events e
         WHERE e.thread_id = t.id AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text)
         ORDER BY e.sequence_num DESC LIMIT 1) AS last_event_id
  FROM {schema}.threads t
 WHERE t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5($3) AND t.session_id = $3;

-- adk_list_sessions: Read the sessions of a user, or of an app, without events, and the states of users and app.
SELECT * FROM {schema}.adk_list_sessions($1, $2);

-- adk_prune_sessions: Delete the sessions of an app without a write for a time; return their number.
WITH gone AS (
    DELETE FROM {schema}.threads WHERE app_name = $1 AND updated_at < now() - $2::interval RETURNING 1
)
SELECT count(*) FROM gone;

-- adk_import_events: Import events of a session, the state after them, and the tokens that models used for them.
WITH imported AS MATERIALIZED (
    SELECT {schema}.import_events(
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::text::jsonb, $15, $16) AS is_stored
), counted AS MATERIALIZED (
    SELECT count({schema}.record_usage($1, item.id, NULL, item.usage::json, item.created_at)) AS calls
      FROM imported, unnest($3::text[], $17::text[], $13::timestamptz[]) AS item (id, usage, created_at)
     WHERE imported.is_stored AND item.usage IS NOT NULL
)
SELECT imported.is_stored FROM imported, counted;

-- adk_import_app_state: Add the missing keys of an app's state.
SELECT {schema}.import_app_state($1, $2::text::jsonb, $3);

-- adk_import_user_state: Add the missing keys of a user's state.
SELECT {schema}.import_user_state($1, $2, $3::text::jsonb, $4);
