-- Drops finished runs of a certain age; their events stay. Returns how many went.
CREATE OR REPLACE FUNCTION {schema}.prune_runs(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.runs
         WHERE status IN ('completed', 'failed', 'cancelled') AND completed_at < now() - p_age
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
