-- Repairs databases of commits before 0.1.0, which edited 0001 and 0004 after databases had run them. `schema/revision.json`
-- lists the checksums of those earlier contents. A database that ran the released contents is not changed.

DO $$
BEGIN
    IF to_regclass('{schema}.threads_app_user_session') IS NOT NULL THEN
        DROP INDEX {schema}.idx_threads_app_user;
        ALTER INDEX {schema}.threads_app_user_session RENAME TO idx_threads_app_user;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{schema}.threads'::regclass AND attname = 'began_at') THEN
        -- A change of the type rewrites the rows and fires no trigger, so `updated_at` stays as it is.
        ALTER TABLE {schema}.threads ADD COLUMN began_at timestamptz;
        ALTER TABLE {schema}.threads
            ALTER COLUMN began_at TYPE timestamptz USING created_at,
            ALTER COLUMN began_at SET DEFAULT clock_timestamp(),
            ALTER COLUMN began_at SET NOT NULL;
        ALTER TABLE {schema}.threads ALTER COLUMN state SET STORAGE EXTERNAL;
        ALTER TABLE {schema}.user_states ALTER COLUMN state SET STORAGE EXTERNAL;
        ALTER TABLE {schema}.app_states ALTER COLUMN state SET STORAGE EXTERNAL;
        -- Its result has other columns since.
        DROP FUNCTION IF EXISTS {schema}.create_sessions(
            uuid[], text[], text[], text[], text[], text[], text[], text[], text[], integer);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = '{schema}.memory_scopes'::regclass AND attname = 'graph_model') THEN
        ALTER TABLE {schema}.memory_scopes
            ADD COLUMN graph_model text,
            ADD COLUMN graph_is_ready boolean NOT NULL DEFAULT false;
    END IF;
END
$$;

-- Functions of those commits whose arguments have changed since.
DROP FUNCTION IF EXISTS {schema}.append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer);
DROP FUNCTION IF EXISTS {schema}.append_event(
    uuid, text, text, text, text, text, json, json, jsonb, jsonb, jsonb, bigint, text, text, text, boolean, boolean,
    integer, integer, bigint);
DROP FUNCTION IF EXISTS {schema}.append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer);
DROP FUNCTION IF EXISTS {schema}.append_events(
    uuid[], integer[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[],
    text[], text[], boolean[], boolean, integer, integer, bigint[]);
DROP FUNCTION IF EXISTS {schema}.merge_user_state(text, text, jsonb, uuid, bigint, integer);
DROP FUNCTION IF EXISTS {schema}.merge_app_state(text, jsonb, uuid, bigint, integer);
