-- Insert rows of an archive into one table. A line is {"table": …, "row": …}, and the row has the columns of the table. A row
-- of another thread or app than the given ones is refused; a null thread stands for rows of a state. Write numbers become
-- negative (by 2^62): they keep their order, and precede every number that was given here.
CREATE OR REPLACE FUNCTION {schema}.import_rows(p_table text, p_lines text[], p_thread_id uuid, p_app_name text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_columns text;
    v_values text;
    v_count bigint;
BEGIN
    IF p_table NOT IN ('user_states', 'app_states', 'state_writes') AND p_thread_id IS NULL
       OR p_thread_id IS NOT NULL AND p_table <> 'threads'
          AND NOT EXISTS (SELECT FROM {schema}.thread_tables() WHERE name = p_table)
    THEN
        RAISE undefined_table USING MESSAGE = format('an archive has no rows of %s', p_table);
    END IF;
    PERFORM FROM (SELECT (line::json -> 'row') AS content FROM unnest(p_lines) line) rows
      WHERE content ->> 'app_name' IS DISTINCT FROM p_app_name
         OR p_thread_id IS NOT NULL
            AND CASE WHEN p_table = 'threads' THEN content ->> 'id' ELSE content ->> 'thread_id' END
                IS DISTINCT FROM p_thread_id::text;
    IF FOUND THEN
        RAISE check_violation USING MESSAGE = format('a row of %s belongs to another thread or app', p_table);
    END IF;
    SELECT string_agg(quote_ident(a.attname), ', '),
           string_agg(CASE WHEN a.attname IN ('write_number', 'began_number')
                           THEN format('CASE WHEN r.%1$I > 0 THEN r.%1$I - 4611686018427387904 ELSE r.%1$I END', a.attname)
                           ELSE 'r.' || quote_ident(a.attname) END, ', ')
      INTO v_columns, v_values
      FROM pg_attribute a
     WHERE a.attrelid = format('{schema}.%I', p_table)::regclass AND a.attnum > 0 AND NOT a.attisdropped
       AND a.attgenerated = '' AND a.attname IN (SELECT json_object_keys(p_lines[1]::json -> 'row'));
    EXECUTE format('INSERT INTO {schema}.%1$I (%2$s) SELECT %3$s FROM unnest($1) line, '
                   'json_populate_record(NULL::{schema}.%1$I, line::json -> ''row'') r', p_table, v_columns, v_values)
      USING p_lines;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;
