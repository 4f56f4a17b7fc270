-- Return the rows of one user in one table of `user_tables`, as JSON.
CREATE OR REPLACE FUNCTION {schema}.read_user_rows(p_table text, p_app_name text, p_user_id text) RETURNS SETOF json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_condition text;
BEGIN
    SELECT condition INTO STRICT v_condition FROM {schema}.user_tables() WHERE name = p_table;
    RETURN QUERY EXECUTE format('SELECT row_to_json(r) FROM {schema}.%I r WHERE %s', p_table, v_condition)
           USING p_app_name, p_user_id;
END
$$;
