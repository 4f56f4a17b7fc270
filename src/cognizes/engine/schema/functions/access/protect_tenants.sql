-- Row level security. The server has the role `cognizes_server` while it serves a caller that belongs to some apps. The
-- role owns nothing, and sees only rows of the apps that `enter_tenant` set in this transaction. Other roles (the engine
-- itself, users of psql) have the policy `true`, which the planner drops, so that it costs nothing.

-- Sets the apps whose rows are visible until the transaction ends. Queries call it in a lateral join on which their scans
-- depend, so that no scan starts before.
CREATE OR REPLACE FUNCTION {schema}.enter_tenant(p_apps text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('cognizes.apps', p_apps::text, true);
    RETURN true;
END
$$;

-- Returns the apps of this transaction; none before `enter_tenant`.
CREATE OR REPLACE FUNCTION {schema}.tenant_apps() RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('cognizes.apps', true), ''), '{}')::text[]
$$;

-- Creates the role, the grants and the policies of every table that has an app_name. It is called after every migration, so
-- that it covers new tables. Returns false where the role does not exist and may not be created.
-- The engine's own user takes the role and must not inherit it: policies for a role apply to every role that inherits it,
-- and the engine would see no rows. Where it inherits the role all the same, its tables are not forced, which only
-- concerns their owner.
CREATE OR REPLACE FUNCTION {schema}.protect_tenants() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_table record;
    v_is_superuser boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cognizes_server') THEN
        BEGIN
            CREATE ROLE cognizes_server NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
        EXCEPTION
            WHEN insufficient_privilege THEN
                RETURN false;
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- created at the same moment by another database of this server
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'cognizes_server', 'SET')
       OR NOT v_is_superuser AND pg_has_role(current_user, 'cognizes_server', 'USAGE') THEN
        BEGIN
            EXECUTE format('GRANT cognizes_server TO %I WITH INHERIT FALSE, SET TRUE', current_user);
        EXCEPTION WHEN insufficient_privilege OR invalid_grant_operation THEN
            NULL; -- then COGNIZES_TENANT_URL must name a member of the role
        END;
    END IF;
    -- A superuser may migrate for an engine that may not create roles: the owner of the tables may take the role, too.
    FOR v_table IN
        SELECT owner.rolname AS name
          FROM pg_class c
          JOIN pg_roles owner ON owner.oid = c.relowner AND owner.rolname <> current_user AND NOT owner.rolsuper
         WHERE c.oid = '{schema}.threads'::regclass AND NOT pg_has_role(owner.oid, 'cognizes_server', 'SET')
    LOOP
        BEGIN
            EXECUTE format('GRANT cognizes_server TO %I WITH INHERIT FALSE, SET TRUE', v_table.name);
        EXCEPTION WHEN insufficient_privilege OR invalid_grant_operation THEN
            NULL; -- then COGNIZES_TENANT_URL must name a member of the role
        END;
    END LOOP;
    GRANT USAGE ON SCHEMA {schema} TO cognizes_server;
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = '{schema}.write_numbers'::regclass), 'USAGE') THEN
        GRANT USAGE ON SEQUENCE {schema}.write_numbers TO cognizes_server;
    END IF;
    FOR v_table IN
        SELECT c.oid::regclass AS name, c.oid, c.relrowsecurity AS is_protected, c.relforcerowsecurity AS is_forced,
               owner.rolsuper OR NOT pg_has_role(owner.oid, 'cognizes_server', 'USAGE') AS may_be_forced
          FROM pg_class c
          JOIN pg_roles owner ON owner.oid = c.relowner
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'app_name' AND NOT a.attisdropped
         WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p')
           AND pg_has_role(c.relowner, 'USAGE')
         ORDER BY c.relname
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO cognizes_server', v_table.name);
        IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = v_table.oid AND polname = 'all_roles') THEN
            EXECUTE format('CREATE POLICY all_roles ON %s USING (true)', v_table.name);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = v_table.oid AND polname = 'tenant') THEN
            -- The sub-select is computed once per scan, not once per row.
            EXECUTE format(
                'CREATE POLICY tenant ON %s AS RESTRICTIVE TO cognizes_server '
                'USING (app_name = ANY ((SELECT {schema}.tenant_apps())::text[]))', v_table.name);
        END IF;
        IF NOT v_table.is_protected OR v_table.is_forced <> v_table.may_be_forced THEN
            EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, %s FORCE ROW LEVEL SECURITY', v_table.name,
                           CASE WHEN v_table.may_be_forced THEN '' ELSE 'NO' END);
        END IF;
    END LOOP;
    -- A view reads with the rights of its caller (`security_invoker`), so the policies of its tables hold.
    FOR v_table IN
        SELECT c.oid::regclass AS name FROM pg_class c
         WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'v' AND pg_has_role(c.relowner, 'USAGE')
           AND 'security_invoker=true' = ANY (c.reloptions)
    LOOP
        EXECUTE format('GRANT SELECT ON %s TO cognizes_server', v_table.name);
    END LOOP;
    RETURN true;
END
$$;

SELECT {schema}.protect_tenants();
