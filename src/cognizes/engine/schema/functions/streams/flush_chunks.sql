-- `write_chunks` replaced it; servers of version 0.2.0 and earlier call it.
-- Write the new chunks of all streams of a process and notify once. Writing a range again changes nothing. Return the
-- places of the ranges whose predecessor is missing: PostgreSQL crashed and truncated the table, so the producer must
-- write its stream again from the start.
CREATE OR REPLACE FUNCTION {schema}.flush_chunks(
    p_threads uuid[], p_message_ids text[], p_app_names text[], p_firsts bigint[], p_lasts bigint[], p_deltas text[],
    p_lengths bytea[], p_payloads text[]
) RETURNS SETOF bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    -- A rewritten stream may have a range with the same end as an existing one: keep the longer range.
    INSERT INTO {schema}.message_chunks AS known (thread_id, message_id, app_name, first_sequence, sequence, delta, lengths)
    SELECT * FROM unnest(p_threads, p_message_ids, p_app_names, p_firsts, p_lasts, p_deltas, p_lengths)
    ON CONFLICT (thread_id, md5(message_id), sequence) DO UPDATE
        SET first_sequence = EXCLUDED.first_sequence, delta = EXCLUDED.delta, lengths = EXCLUDED.lengths
      WHERE EXCLUDED.first_sequence < known.first_sequence;
    PERFORM pg_notify('stream_moved{channel_suffix}', payload) FROM unnest(p_payloads) AS notification (payload);
    RETURN QUERY
    SELECT written.place
      FROM unnest(p_threads, p_message_ids, p_firsts) WITH ORDINALITY AS written (thread_id, message_id, first, place)
     WHERE written.first > 1 AND NOT EXISTS (
            SELECT FROM {schema}.message_chunks c
             WHERE c.thread_id = written.thread_id AND md5(c.message_id) = md5(written.message_id)
               AND c.sequence = written.first - 1);
END
$$;
