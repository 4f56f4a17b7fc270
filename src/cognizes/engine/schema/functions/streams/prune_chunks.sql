-- Delete chunks older than an age, except those of open streams; finished messages have their whole text. Return the
-- number of deleted rows.
CREATE OR REPLACE FUNCTION {schema}.prune_chunks(p_age interval) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.message_chunks c
         WHERE c.created_at < now() - p_age
           AND NOT EXISTS (SELECT FROM {schema}.message_streams s
                            WHERE s.thread_id = c.thread_id AND md5(s.message_id) = md5(c.message_id)
                              AND s.status = 'streaming')
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
