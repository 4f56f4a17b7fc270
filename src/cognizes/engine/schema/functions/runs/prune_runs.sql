-- Delete ended runs older than p_age; their events stay. Return how many.
CREATE OR REPLACE FUNCTION {schema}.prune_runs(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM {schema}.runs
         WHERE status IN ('completed', 'failed', 'cancelled') AND completed_at < now() - p_age
        RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;
