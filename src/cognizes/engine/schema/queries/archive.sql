-- list_user_tables: List the tables that hold rows of one user.
SELECT name FROM {schema}.user_tables();

-- read_user_rows: Read the rows of one user in one table, as JSON.
SELECT row::text AS row FROM {schema}.read_user_rows($1, $2, $3) AS row;

-- read_user_audit: Read the entries of the audit log that the user made, or that name the user.
SELECT row_to_json(a)::text AS row FROM {schema}.audit_log a
 WHERE a.app_name = $1 AND (a.actor IN ($2, 'jwt:' || $2) OR $2 = ANY (string_to_array(a.target, '/')))
 ORDER BY a.created_at, a.id;

-- read_user_blobs: Read the bytes of the artifacts of one user, of those that are in the database.
SELECT row_to_json(b)::text AS row FROM {schema}.artifact_blobs b
 WHERE b.id IN (SELECT blob_id FROM {schema}.artifacts WHERE app_name = $1 AND user_id = $2);

-- read_user_conversation_entries: Read the entries of the conversations whose scope is one user.
WITH RECURSIVE own AS (
    SELECT e.id, e.parent_id
      FROM {schema}.conversation_records r
      JOIN {schema}.conversation_entries e ON e.app_name = r.app_name AND e.id = ANY (r.branches || r.head_id)
     WHERE r.app_name = $1 AND r.user_id = $2
    UNION
    SELECT e.id, e.parent_id FROM own o JOIN {schema}.conversation_entries e ON e.app_name = $1 AND e.id = o.parent_id
)
SELECT row_to_json(e)::text AS row FROM own o JOIN {schema}.conversation_entries e ON e.app_name = $1 AND e.id = o.id;

-- erase_user: Delete all rows of one user.
SELECT table_name, rows FROM {schema}.erase_user($1, $2, $3);

-- list_streams_of_user: List the streamed messages of one user.
SELECT s.thread_id, s.message_id
  FROM {schema}.threads t JOIN {schema}.message_streams s ON s.thread_id = t.id
 WHERE t.app_name = $1 AND t.user_id = $2;

-- prune_threads: Delete a batch of threads that were not changed for a number of days.
SELECT {schema}.prune_threads($1, $2);

-- list_archive_threads: List the threads of an app, of a user or of a session, with the run that is being executed.
SELECT t.id, t.app_name, t.user_id, t.session_id, row_to_json(t)::text AS row,
       (SELECT r.id FROM {schema}.runs r
         WHERE r.thread_id = t.id AND r.status IN ('pending', 'running') LIMIT 1) AS active_run,
       (SELECT s.message_id FROM {schema}.message_streams s
         WHERE s.thread_id = t.id AND s.status = 'streaming' LIMIT 1) AS open_stream
  FROM {schema}.threads t
 WHERE t.app_name = $1 AND ($2::text IS NULL OR t.user_id = $2) AND ($3::text IS NULL OR t.session_id = $3)
 ORDER BY t.user_id, t.id;

-- list_thread_tables: List the tables whose rows move with a thread.
SELECT name FROM {schema}.thread_tables();

-- read_thread_rows: Read the rows of one thread in one table, as JSON.
SELECT row::text AS row FROM {schema}.read_thread_rows($1, $2) AS row;

-- read_scope_rows: Read the state of a user, or of the app without one, with its history, as JSON.
SELECT table_name, content::text AS row FROM {schema}.read_scope_rows($1, $2);

-- find_imported: Find a thread by its id, or by its session.
SELECT id, last_sequence FROM {schema}.threads
 WHERE id = $1 OR app_name = $2 AND user_id = $3 AND md5(session_id) = md5($4) AND session_id = $4;

-- has_scope: Return whether a user, or the app without one, has a state.
SELECT CASE WHEN $2::text IS NULL THEN EXISTS (SELECT FROM {schema}.app_states WHERE app_name = $1)
            ELSE EXISTS (SELECT FROM {schema}.user_states WHERE app_name = $1 AND user_id = $2) END;

-- import_rows: Insert rows of an archive into one table.
SELECT {schema}.import_rows($1, $2, $3, $4);

-- read_schema_number: Read the number of the newest migration.
SELECT max(number) FROM {schema}.schema_migrations;

-- count_tables: Count the tables of the database.
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\_%';

-- find_filled_table: Find a table with data of a tenant or with a key; null when there is none.
SELECT c.relname::text
  FROM pg_class c
 WHERE c.relnamespace = to_regnamespace('{schema}') AND c.relkind IN ('r', 'p')
   AND (c.relname = 'api_keys'
        OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'app_name' AND NOT a.attisdropped))
   AND pg_relation_size(c.oid) > 0
 ORDER BY 1 LIMIT 1;

-- create_server_role: Create the role of the policies, which a dump does not contain.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cognizes_server') THEN
        CREATE ROLE cognizes_server NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
    END IF;
END
$$;
