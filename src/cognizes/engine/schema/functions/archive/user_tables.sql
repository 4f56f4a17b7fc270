-- Return the tables that hold rows of one user, found in the catalogue, so that a new table is covered:
--   user_id    tables with app_name and user_id
--   thread_id  tables with app_name and the id of a thread; for LangGraph's checkpoints it is a text
--   parent     tables whose rows are deleted with rows of a table above, by a foreign key of one column
-- `condition` selects the rows r of the user $2 of the app $1. `is_cascaded` says that deleting a thread, or the parent,
-- deletes the rows.
CREATE OR REPLACE FUNCTION {schema}.user_tables()
RETURNS TABLE (name text, key text, is_cascaded boolean, condition text) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE direct AS (
        SELECT c.oid, c.relname,
               bool_or(a.attname = 'user_id') AS has_user,
               bool_or(a.attname = 'thread_id' AND a.atttypid = 'text'::regtype) AS has_text_id,
               EXISTS (SELECT FROM pg_constraint k
                        WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confdeltype = 'c'
                          AND (SELECT attnum FROM pg_attribute WHERE attrelid = c.oid AND attname = 'thread_id')
                              = ANY (k.conkey)) AS is_cascaded
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
         GROUP BY c.oid, c.relname
        HAVING bool_or(a.attname = 'app_name') AND bool_or(a.attname IN ('user_id', 'thread_id'))
    ), found AS (
        SELECT d.oid, d.relname, CASE WHEN d.has_user THEN 'user_id' ELSE 'thread_id' END AS key,
               d.is_cascaded OR d.has_text_id AS is_cascaded,
               (CASE WHEN d.has_user THEN '@.app_name = $1 AND @.user_id = $2'
                    ELSE format('@.thread_id IN (SELECT t.id%s FROM {schema}.threads t '
                                'WHERE t.app_name = $1 AND t.user_id = $2)',
                                CASE WHEN d.has_text_id THEN '::text' ELSE '' END)
                END) COLLATE "C" AS condition
          FROM direct d
         UNION
        SELECT c.oid, c.relname, 'parent', true,
               format('@.%I IN (SELECT p%s.%I FROM {schema}.%I p%s WHERE %s)', child.attname, f.oid, parent.attname, f.relname,
                      f.oid, replace(f.condition, '@', 'p' || f.oid)) COLLATE "C"
          FROM found f
          JOIN pg_constraint k ON k.confrelid = f.oid AND k.contype = 'f' AND k.confdeltype = 'c' AND cardinality(k.conkey) = 1
          JOIN pg_class c ON c.oid = k.conrelid AND c.relnamespace = '{schema}'::regnamespace AND NOT c.relispartition
          JOIN pg_attribute child ON child.attrelid = c.oid AND child.attnum = k.conkey[1]
          JOIN pg_attribute parent ON parent.attrelid = f.oid AND parent.attnum = k.confkey[1]
         WHERE c.oid NOT IN (SELECT oid FROM direct)
    )
    SELECT DISTINCT ON (relname <> 'threads', relname)
           relname::text, key, is_cascaded, replace(condition, '@', 'r')
      FROM found ORDER BY relname <> 'threads', relname
$$;
