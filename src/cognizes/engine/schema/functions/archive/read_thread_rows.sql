-- Return the tables whose rows belong to one thread and move with it. Queues, caches, chunks of open streams and
-- schedules do not: both installations would fire a schedule.
CREATE OR REPLACE FUNCTION {schema}.thread_tables() RETURNS TABLE (name text) LANGUAGE sql STABLE AS $$
    SELECT c.relname::text
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'thread_id' AND a.atttypid = 'uuid'::regtype
     WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
       AND c.relname NOT IN ('message_chunks', 'message_counts', 'agent_episodes_due', 'state_writes', 'schedules',
                             'schedule_firings', 'webhook_deliveries')
     -- Rows of a run refer to it.
     ORDER BY c.relname <> 'runs', c.relname
$$;

-- Return the rows of one thread in one table of `thread_tables`, as JSON.
CREATE OR REPLACE FUNCTION {schema}.read_thread_rows(p_table text, p_thread_id uuid) RETURNS SETOF json
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM FROM {schema}.thread_tables() WHERE name = p_table;
    IF NOT FOUND THEN
        RAISE undefined_table USING MESSAGE = format('no rows of a thread are in %s', p_table);
    END IF;
    RETURN QUERY EXECUTE format('SELECT row_to_json(r) FROM {schema}.%I r WHERE r.thread_id = $1', p_table)
           USING p_thread_id;
END
$$;

-- Return the state of a user or of an app with its history, as JSON: the row of the state, then its writes.
CREATE OR REPLACE FUNCTION {schema}.read_scope_rows(p_app_name text, p_user_id text)
RETURNS TABLE (table_name text, content json) LANGUAGE sql STABLE AS $$
    SELECT 'user_states', row_to_json(u) FROM {schema}.user_states u
     WHERE u.app_name = p_app_name AND u.user_id = p_user_id
    UNION ALL
    SELECT 'app_states', row_to_json(a) FROM {schema}.app_states a
     WHERE a.app_name = p_app_name AND p_user_id IS NULL
    UNION ALL
    SELECT 'state_writes', row_to_json(w) FROM {schema}.state_writes w
     WHERE w.app_name = p_app_name
       AND CASE WHEN p_user_id IS NULL THEN w.scope = 'app' ELSE w.scope = 'user' AND w.user_id = p_user_id END
$$;
