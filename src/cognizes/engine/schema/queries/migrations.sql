-- record_migration: Record that a script ran, and the engine that ran it.
INSERT INTO {schema}.schema_migrations (name, number, checksum, engine_version) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
    SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version, applied_at = now();

-- record_revision: Record the revision of the installed functions, and delete the records of other functions.
WITH forgotten AS (
    DELETE FROM {schema}.schema_migrations WHERE number = 0 AND name <> ALL ($2::text[])
)
UPDATE {schema}.schema_migrations SET revision = $1 WHERE number = 0 AND name = ANY ($2::text[]);

-- lock_migrations: Wait until no other process migrates.
SELECT pg_advisory_xact_lock($1);

-- skip_function_body_checks: Let functions refer to functions that are created after them, in this transaction.
SET LOCAL check_function_bodies = off;

-- find_migrations_table: Find the table of migrations; null before the first migration.
SELECT to_regclass('{schema}.schema_migrations')::text;

-- read_migrations: Read the scripts that ran. A database of an engine before revisions has no such column, and revision 0.
SELECT m.name, m.number, m.checksum, coalesce((to_jsonb(m) ->> 'revision')::integer, 0) AS revision
  FROM {schema}.schema_migrations m;

-- read_server: Read the version of the server, as a number and as text, and whether pgvector is available.
SELECT current_setting('server_version_num')::integer AS number,
       current_setting('server_version') AS spelling,
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') AS has_vector;

-- lacks_protection: Return whether `protect_tenants` has something to do that it may do: the role `cognizes_server`, its grants or
-- its policies are missing (a restored dump), or the owner of the tables inherits the role and sees none of its own rows.
WITH me AS (
    SELECT oid, rolsuper, rolsuper OR rolcreaterole AS may_create_role FROM pg_roles WHERE rolname = current_user
), server AS (
    SELECT oid FROM pg_roles WHERE rolname = 'cognizes_server'
), own_tables AS (
    SELECT c.oid, c.relowner, c.relrowsecurity, c.relforcerowsecurity
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'app_name' AND NOT a.attisdropped
     WHERE c.relnamespace = to_regnamespace('{schema}') AND c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE')
)
SELECT (me.may_create_role AND NOT EXISTS (SELECT FROM server))
    OR EXISTS (SELECT FROM server, own_tables t
                WHERE NOT has_schema_privilege(server.oid, to_regnamespace('{schema}')::oid, 'USAGE')
                   OR NOT has_table_privilege(server.oid, t.oid, 'SELECT')
                   OR NOT has_table_privilege(server.oid, t.oid, 'INSERT')
                   OR NOT has_table_privilege(server.oid, t.oid, 'UPDATE')
                   OR NOT has_table_privilege(server.oid, t.oid, 'DELETE')
                   OR NOT coalesce(has_sequence_privilege(
                              server.oid, to_regclass('{schema}.write_numbers')::oid, 'USAGE'), true)
                   OR NOT t.relrowsecurity
                   OR NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = t.oid AND polname = 'all_roles')
                   OR NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = t.oid AND polname = 'tenant'
                                     AND NOT polpermissive AND polroles @> ARRAY[server.oid])
                   OR t.relowner = me.oid AND t.relforcerowsecurity AND NOT me.rolsuper
                      AND pg_has_role(me.oid, server.oid, 'USAGE'))
  FROM me;

-- protect_tenants: Enable row level security on every table that has an app_name.
SELECT {schema}.protect_tenants();

-- limit_locks: Limit the time that a statement of this transaction waits for a lock, in milliseconds.
SELECT set_config('lock_timeout', $1, true);

-- read_long_transactions: Read the oldest transactions of other sessions that are open for longer than $1 seconds.
SELECT pid, application_name, date_trunc('second', clock_timestamp() - xact_start)::text AS age
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - make_interval(secs => $1)
 ORDER BY xact_start LIMIT 3;

-- read_table_sizes: Read the estimated number of rows and the bytes of each table.
SELECT c.relname::text AS name, greatest(c.reltuples, 0)::bigint AS rows, pg_total_relation_size(c.oid) AS size
  FROM pg_class c WHERE c.relnamespace = to_regnamespace('{schema}') AND c.relkind IN ('r', 'p');

-- read_table_files: Read the file of each table, which a rewrite replaces, and the names of its indexes.
SELECT c.relname::text AS name, c.relfilenode::bigint AS file,
       ARRAY(SELECT i.indexrelid::regclass::text FROM pg_index i WHERE i.indrelid = c.oid) AS indexes
  FROM pg_class c WHERE c.relnamespace = to_regnamespace('{schema}') AND c.relkind IN ('r', 'p');

-- read_own_locks: Read the locks of this transaction on tables, of the modes $1.
SELECT DISTINCT c.relname::text AS name, l.mode
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
 WHERE l.pid = pg_backend_pid() AND c.relnamespace = to_regnamespace('{schema}') AND c.relkind IN ('r', 'p')
   AND l.mode = ANY ($1::text[]) AND c.relname <> 'schema_migrations';
