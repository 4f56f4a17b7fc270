-- Returns whether an event of the conversation follows a sequence number.
CREATE OR REPLACE FUNCTION {schema}.has_conversation_after(p_thread_id uuid, p_sequence bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.events e
         WHERE e.thread_id = p_thread_id AND e.sequence_num > p_sequence
           AND {schema}.is_conversation(e.event_type, e.changes_state, e.content::text))
$$;
