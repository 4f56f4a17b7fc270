-- Mark memories as duplicates of others, unless one of the two has changed since it was read. Recall returns the kept one; the
-- duplicate keeps its row, and so its sources. Returns the number of memories marked.
CREATE OR REPLACE FUNCTION {schema}.merge_memories(
    p_app_name text, p_user_id text, p_ids bigint[], p_revisions bigint[], p_kept bigint[], p_kept_revisions bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_merged bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    WITH pairs AS (
        SELECT g.id, g.kept, d.importance
          FROM unnest(p_ids, p_revisions, p_kept, p_kept_revisions) AS g (id, revision, kept, kept_revision)
          JOIN {schema}.memories d ON d.app_name = p_app_name AND d.user_id = p_user_id AND d.id = g.id
           AND d.revision = g.revision AND d.duplicate_of IS NULL
          JOIN {schema}.memories k ON k.app_name = p_app_name AND k.user_id = p_user_id AND k.id = g.kept
           AND k.revision = g.kept_revision AND k.duplicate_of IS NULL
    ), marked AS (
        UPDATE {schema}.memories m SET duplicate_of = pairs.kept
          FROM pairs
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND (m.id = pairs.id OR m.duplicate_of = pairs.id)
        RETURNING m.id
    )
    SELECT coalesce(array_agg(id), '{}') INTO v_merged FROM marked;
    UPDATE {schema}.memories k SET importance = greatest(k.importance, best.importance)
      FROM (SELECT m.duplicate_of AS id, max(m.importance) AS importance FROM {schema}.memories m
             WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_merged)
             GROUP BY m.duplicate_of) best
     WHERE k.app_name = p_app_name AND k.user_id = p_user_id AND k.id = best.id AND best.importance IS NOT NULL;
    -- A search by meaning would otherwise find the duplicates in place of other memories.
    DELETE FROM {schema}.memory_vectors v
     WHERE v.app_name = p_app_name AND v.user_id = p_user_id AND v.memory_id = ANY (v_merged);
    DELETE FROM {schema}.memory_embedding_queue q
     WHERE q.app_name = p_app_name AND q.user_id = p_user_id AND q.memory_id = ANY (v_merged);
    RETURN cardinality(v_merged);
END
$$;

-- Trigger: queue a memory that is no longer a duplicate for its vector. Without an embedder it waits in the queue.
CREATE OR REPLACE FUNCTION {schema}.restore_duplicate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.memory_embedding_queue (app_name, user_id, memory_id)
    VALUES (NEW.app_name, NEW.user_id, NEW.id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER restore_duplicate AFTER UPDATE OF duplicate_of ON {schema}.memories
    FOR EACH ROW WHEN (OLD.duplicate_of IS NOT NULL AND NEW.duplicate_of IS NULL)
    EXECUTE FUNCTION {schema}.restore_duplicate();
