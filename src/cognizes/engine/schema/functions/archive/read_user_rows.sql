-- Return the rows of one user in one table of `user_tables`, as JSON.
CREATE OR REPLACE FUNCTION {schema}.read_user_rows(p_table text, p_app_name text, p_user_id text) RETURNS SETOF json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_key text;
BEGIN
    SELECT key INTO STRICT v_key FROM {schema}.user_tables() WHERE name = p_table;
    IF v_key = 'user_id' THEN
        RETURN QUERY EXECUTE format(
            'SELECT row_to_json(r) FROM {schema}.%I r WHERE r.app_name = $1 AND r.user_id = $2', p_table)
        USING p_app_name, p_user_id;
    ELSE
        RETURN QUERY EXECUTE format(
            'SELECT row_to_json(r) FROM {schema}.threads t JOIN {schema}.%I r ON r.thread_id = t.id '
            'WHERE t.app_name = $1 AND t.user_id = $2', p_table)
        USING p_app_name, p_user_id;
    END IF;
END
$$;
