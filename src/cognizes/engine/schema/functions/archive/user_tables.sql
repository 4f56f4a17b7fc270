-- Return the tables that hold rows of one user, found in the catalogue, so that a new table is covered: those with app_name
-- and user_id, and those with app_name and the thread's id. `is_cascaded` says that deleting a thread deletes its rows.
CREATE OR REPLACE FUNCTION {schema}.user_tables() RETURNS TABLE (name text, key text, is_cascaded boolean)
LANGUAGE sql STABLE AS $$
    SELECT c.relname::text,
           CASE WHEN bool_or(a.attname = 'user_id') THEN 'user_id' ELSE 'thread_id' END,
           EXISTS (SELECT FROM pg_constraint k
                    WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confdeltype = 'c')
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
     GROUP BY c.oid, c.relname
    HAVING bool_or(a.attname = 'app_name')
       AND bool_or(a.attname = 'user_id' OR a.attname = 'thread_id' AND a.atttypid = 'uuid'::regtype)
     ORDER BY c.relname <> 'threads', c.relname
$$;
