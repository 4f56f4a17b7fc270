-- record_migration: Records that a script ran, and which engine ran it.
INSERT INTO {schema}.schema_migrations (name, number, checksum, engine_version) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
    SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version, applied_at = now();

-- record_revision: Records the revision of the installed functions, and forgets functions that are not part of it.
WITH forgotten AS (
    DELETE FROM {schema}.schema_migrations WHERE number = 0 AND name <> ALL ($2::text[])
)
UPDATE {schema}.schema_migrations SET revision = $1 WHERE number = 0 AND name = ANY ($2::text[]);

-- lock_migrations: One process migrates; the others wait here and then find nothing to do.
SELECT pg_advisory_xact_lock($1);

-- find_migrations_table: Null before the first migration.
SELECT to_regclass('{schema}.schema_migrations')::text;

-- read_migrations: The scripts that ran. A database of an engine before revisions has no such column, and revision 0.
SELECT m.name, m.number, m.checksum, coalesce((to_jsonb(m) ->> 'revision')::integer, 0) AS revision
  FROM {schema}.schema_migrations m;

-- read_server: Version number, its spelling, and whether pgvector can be had.
SELECT current_setting('server_version_num')::integer AS number,
       current_setting('server_version') AS spelling,
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') AS has_vector;

-- is_blind: Whether the owner of the tables was made to inherit the tenants' role since, and so sees nothing of its own.
SELECT EXISTS (
    SELECT FROM pg_class c JOIN pg_roles me ON me.oid = c.relowner AND me.rolname = current_user
     WHERE c.oid = to_regclass('{schema}.threads') AND c.relforcerowsecurity AND NOT me.rolsuper
       AND pg_has_role((SELECT oid FROM pg_roles WHERE rolname = 'cognizes_server'), 'USAGE'));

-- protect_tenants: Row level security on every table that has an app_name.
SELECT {schema}.protect_tenants();
