-- Keeps the newest snapshots of every thread, and the state it was created with. Returns how many went.
CREATE OR REPLACE FUNCTION {schema}.prune_snapshots(p_keep integer) RETURNS bigint LANGUAGE sql AS $$
    WITH ranked AS (
        SELECT thread_id, version, row_number() OVER (PARTITION BY thread_id ORDER BY version DESC) AS place
          FROM {schema}.snapshots WHERE sequence_num > 0
    ), gone AS (
        DELETE FROM {schema}.snapshots s USING ranked r
         WHERE s.thread_id = r.thread_id AND s.version = r.version AND r.place > p_keep
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
