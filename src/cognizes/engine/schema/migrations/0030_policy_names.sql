-- The permissive policy of every table with an app_name is called `all_roles`.
DO $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN
        SELECT p.polrelid::regclass
          FROM pg_policy p
          JOIN pg_class c ON c.oid = p.polrelid
         WHERE p.polname = 'everybody' AND c.relnamespace = '{schema}'::regnamespace AND pg_has_role(c.relowner, 'USAGE')
    LOOP
        EXECUTE format('ALTER POLICY everybody ON %s RENAME TO all_roles', v_table);
    END LOOP;
END
$$;
