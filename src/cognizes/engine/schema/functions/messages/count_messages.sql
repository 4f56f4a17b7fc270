-- Count the messages of a branch (null: the active one) up to an event: rows of `messages`, and tool calls and results
-- without text, which have no row there. Stored counts bound the cost for long threads; if it had to count many rows,
-- `counted_to` and `messages_to` are a count to store.
CREATE OR REPLACE FUNCTION {schema}.count_messages(
    p_thread_id uuid, p_name text, p_last_sequence bigint,
    OUT messages bigint, OUT counted_to bigint, OUT messages_to bigint
) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_worth_saving CONSTANT bigint := 256;
    v_path record;
    v_end bigint;
    v_from record;
    v_to record;
BEGIN
    messages := 0;
    FOR v_path IN SELECT * FROM {schema}.branch_path(p_thread_id, p_name) LOOP
        v_end := least(v_path.last_sequence, p_last_sequence);
        v_from := {schema}.count_messages_to(p_thread_id, v_path.first_sequence - 1);
        v_to := {schema}.count_messages_to(p_thread_id, v_end);
        messages := messages + greatest(v_to.messages - v_from.messages, 0);
        IF v_to.counted > v_worth_saving THEN
            counted_to := v_end;
            messages_to := v_to.messages;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.count_messages_to(
    p_thread_id uuid, p_sequence bigint, OUT messages bigint, OUT counted bigint
) LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_known record;
BEGIN
    IF p_sequence <= 0 THEN
        messages := 0;
        counted := 0;
        RETURN;
    END IF;
    SELECT c.sequence_num, c.messages INTO v_known FROM {schema}.message_counts c
     WHERE c.thread_id = p_thread_id AND c.sequence_num <= p_sequence ORDER BY c.sequence_num DESC LIMIT 1;
    SELECT count(*) INTO counted FROM {schema}.messages m
     WHERE m.thread_id = p_thread_id AND m.sequence_num > coalesce(v_known.sequence_num, 0)
       AND m.sequence_num <= p_sequence;
    counted := counted + (
        SELECT count(*) FROM {schema}.events e
         WHERE e.thread_id = p_thread_id AND e.sequence_num > coalesce(v_known.sequence_num, 0)
           AND e.sequence_num <= p_sequence AND e.event_type IN ('act', 'tool_call', 'observe', 'tool_result')
           AND NOT EXISTS (SELECT FROM {schema}.messages m
                            WHERE m.thread_id = e.thread_id AND m.sequence_num = e.sequence_num));
    messages := coalesce(v_known.messages, 0) + counted;
END
$$;
