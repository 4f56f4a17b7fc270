-- Delete up to p_limit rows of streams that completed before an age: their messages are stored, and are then read like
-- messages that were never streamed. Interrupted streams stay: only their row says so. Return the number of deleted rows.
CREATE OR REPLACE FUNCTION {schema}.prune_streams(p_age interval, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH old AS (
        SELECT thread_id, message_id FROM {schema}.message_streams
         WHERE status = 'completed' AND ended_at < now() - p_age LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {schema}.message_streams s USING old
         WHERE s.thread_id = old.thread_id AND md5(s.message_id) = md5(old.message_id) AND s.message_id = old.message_id
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
