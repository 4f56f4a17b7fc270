-- Store the words and vectors of messages. Skips messages that another transaction indexes or deletes. A null model means
-- that the message was not embedded; a model without a vector means that the model refused the text. Returns the number of
-- changed messages.
CREATE OR REPLACE FUNCTION {schema}.index_messages(
    p_thread_ids uuid[], p_sequence_nums bigint[], p_words text[], p_models text[], p_vectors text[]
) RETURNS bigint LANGUAGE plpgsql
-- The plan is cached, possibly while the tables are empty, and must suit large tables.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_indexed bigint;
BEGIN
    WITH given AS (
        SELECT g.*, t.app_name, t.user_id
          FROM unnest(p_thread_ids, p_sequence_nums, p_words, p_models, p_vectors)
               AS g (thread_id, sequence_num, words, model, vector)
          JOIN {schema}.threads t ON t.id = g.thread_id
    ), held AS MATERIALIZED (
        SELECT g.* FROM given g
          JOIN {schema}.messages m ON m.thread_id = g.thread_id AND m.sequence_num = g.sequence_num
         WHERE m.terms IS NULL OR m.embedding_model IS NULL AND g.model IS NOT NULL
         ORDER BY g.thread_id, g.sequence_num
           FOR NO KEY UPDATE OF m SKIP LOCKED
    )
    UPDATE {schema}.messages m
       SET terms = {schema}.memory_term_keys(h.app_name, '', h.words)
                   || {schema}.memory_term_keys(h.app_name, h.user_id, h.words),
           embedding = h.vector::vector,
           embedding_model = h.model
      FROM held h
     WHERE m.thread_id = h.thread_id AND m.sequence_num = h.sequence_num;
    GET DIAGNOSTICS v_indexed = ROW_COUNT;
    RETURN v_indexed;
END
$$;
