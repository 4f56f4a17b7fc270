-- Delete deliveries that were given up before p_age. Return how many.
CREATE OR REPLACE FUNCTION {schema}.prune_dead_letters(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM {schema}.webhook_deliveries WHERE dead_at < now() - p_age RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;
