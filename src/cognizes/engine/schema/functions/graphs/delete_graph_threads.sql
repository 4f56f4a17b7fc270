-- Delete the checkpoints of threads in all their namespaces. Returns the number of namespaces.
CREATE OR REPLACE FUNCTION {schema}.delete_graph_threads(p_app_name text, p_thread_ids text[]) RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.graph_namespaces n
         USING (SELECT DISTINCT unnest(p_thread_ids) AS thread_id) t
         WHERE md5(n.thread_id) = md5(t.thread_id) AND n.app_name = p_app_name AND n.thread_id = t.thread_id
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;

-- Trigger: delete the checkpoints of deleted threads. Every app may use the id of a thread as the id of its graph's thread.
CREATE OR REPLACE FUNCTION {schema}.forget_graph_threads() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    DELETE FROM {schema}.graph_namespaces n USING gone g
     WHERE md5(n.thread_id) = md5(g.id::text) AND n.thread_id = g.id::text;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER forget_graph_threads AFTER DELETE ON {schema}.threads
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {schema}.forget_graph_threads();
