-- Drops streamed chunks of a certain age; finished messages have their whole text. Returns how many went.
CREATE OR REPLACE FUNCTION {schema}.prune_chunks(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.message_chunks WHERE created_at < now() - p_age RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
