-- Deletes snapshots except the newest of every thread and that of sequence 0. Returns the number of deleted rows. Skips rows
-- that another transaction locks, so that two deletions cannot deadlock.
CREATE OR REPLACE FUNCTION {schema}.prune_snapshots(p_keep integer) RETURNS bigint LANGUAGE sql AS $$
    WITH ranked AS (
        SELECT thread_id, version, row_number() OVER (PARTITION BY thread_id ORDER BY version DESC) AS place
          FROM {schema}.snapshots WHERE sequence_num > 0
    ), old AS (
        SELECT s.thread_id, s.version FROM {schema}.snapshots s
          JOIN ranked r ON r.thread_id = s.thread_id AND r.version = s.version
         WHERE r.place > p_keep
         ORDER BY s.thread_id, s.version
           FOR UPDATE OF s SKIP LOCKED
    ), gone AS (
        DELETE FROM {schema}.snapshots s USING old
         WHERE s.thread_id = old.thread_id AND s.version = old.version
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
