-- Store the vectors of memories that have not changed since they were claimed, and remove them from the queue. Vectors of
-- users with many memories go into the HNSW index. Returns the ids that another transaction has locked, for a retry.
CREATE OR REPLACE FUNCTION {schema}.store_vectors(
    p_app_names text[], p_user_ids text[], p_memory_ids bigint[], p_revisions bigint[], p_model text, p_vectors text[]
) RETURNS bigint[] LANGUAGE plpgsql
-- The plan is cached, possibly while the tables are empty, and must suit large tables.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_locked bigint[];
BEGIN
    WITH given AS (
        SELECT * FROM unnest(p_app_names, p_user_ids, p_memory_ids, p_revisions, p_vectors)
                      AS g (app_name, user_id, memory_id, revision, vector)
    ), current AS (
        -- Locked until commit, so that a text cannot change under its new vector. SKIP LOCKED: a memory that another
        -- transaction changes or deletes would get a stale vector, and waiting for it could deadlock.
        SELECT g.* FROM given g
          JOIN {schema}.memories m ON m.app_name = g.app_name AND m.user_id = g.user_id AND m.id = g.memory_id
         WHERE m.revision = g.revision
         ORDER BY g.app_name, g.user_id, g.memory_id
           FOR NO KEY UPDATE OF m SKIP LOCKED
    ), kept AS (
        INSERT INTO {schema}.memory_vectors (app_name, user_id, memory_id, model, in_graph, embedding)
        SELECT c.app_name, c.user_id, c.memory_id, p_model,
               coalesce((SELECT s.graph_model = p_model FROM {schema}.memory_scopes s
                          WHERE s.app_name = c.app_name AND s.user_id = c.user_id), false),
               c.vector::halfvec
          FROM current c
        ON CONFLICT (app_name, user_id, memory_id) DO UPDATE
           SET model = excluded.model, in_graph = excluded.in_graph, embedding = excluded.embedding
        RETURNING app_name, user_id, memory_id
    ), gone AS (
        DELETE FROM {schema}.memory_embedding_queue q USING kept
         WHERE q.app_name = kept.app_name AND q.user_id = kept.user_id AND q.memory_id = kept.memory_id
    )
    SELECT coalesce(array_agg(g.memory_id), '{}') INTO v_locked
      FROM given g
      JOIN {schema}.memories m ON m.app_name = g.app_name AND m.user_id = g.user_id AND m.id = g.memory_id
     WHERE m.revision = g.revision
       AND NOT EXISTS (SELECT FROM kept k WHERE k.app_name = g.app_name AND k.user_id = g.user_id AND k.memory_id = g.memory_id);
    RETURN v_locked;
END
$$;
