-- Write the new chunks of all streams of a process and notify once. Writing a range again changes nothing. Return the
-- places of the ranges that a producer has to know of:
--   lost        the stream ended, or another process opened it again: nothing was written
--   incomplete  the predecessor is missing: PostgreSQL crashed and truncated the table, so the producer must write its
--               stream again from the start
CREATE OR REPLACE FUNCTION {schema}.write_chunks(
    p_threads uuid[], p_message_ids text[], p_owners uuid[], p_app_names text[], p_firsts bigint[], p_lasts bigint[],
    p_deltas text[], p_lengths bytea[], p_payloads text[]
) RETURNS TABLE (place bigint, refusal text) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_lost bigint[];
BEGIN
    -- open_stream waits for this lock before it opens a stream again: either it sees the chunks, or the owner differs.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('streams', 0));
    SELECT coalesce(array_agg(written.place), '{}') INTO v_lost
      FROM unnest(p_threads, p_message_ids, p_owners) WITH ORDINALITY AS written (thread_id, message_id, owner, place)
     WHERE NOT EXISTS (
            SELECT FROM {schema}.message_streams s
             WHERE s.thread_id = written.thread_id AND md5(s.message_id) = md5(written.message_id)
               AND s.status = 'streaming' AND s.owner IS NOT DISTINCT FROM written.owner);
    -- A rewritten stream may have a range with the same end as an existing one: keep the longer range.
    INSERT INTO {schema}.message_chunks AS known (thread_id, message_id, app_name, first_sequence, sequence, delta, lengths)
    SELECT thread_id, message_id, app_name, first, last, delta, lengths
      FROM unnest(p_threads, p_message_ids, p_app_names, p_firsts, p_lasts, p_deltas, p_lengths) WITH ORDINALITY
           AS written (thread_id, message_id, app_name, first, last, delta, lengths, place)
     WHERE place <> ALL (v_lost)
    ON CONFLICT (thread_id, md5(message_id), sequence) DO UPDATE
        SET first_sequence = EXCLUDED.first_sequence, delta = EXCLUDED.delta, lengths = EXCLUDED.lengths
      WHERE EXCLUDED.first_sequence < known.first_sequence;
    PERFORM pg_notify('stream_moved{channel_suffix}', payload) FROM unnest(p_payloads) AS notification (payload);
    RETURN QUERY
    SELECT lost.place, 'lost' FROM unnest(v_lost) AS lost (place)
    UNION ALL
    SELECT written.place, 'incomplete'
      FROM unnest(p_threads, p_message_ids, p_firsts) WITH ORDINALITY AS written (thread_id, message_id, first, place)
     WHERE written.first > 1 AND written.place <> ALL (v_lost) AND NOT EXISTS (
            SELECT FROM {schema}.message_chunks c
             WHERE c.thread_id = written.thread_id AND md5(c.message_id) = md5(written.message_id)
               AND c.sequence = written.first - 1);
END
$$;
