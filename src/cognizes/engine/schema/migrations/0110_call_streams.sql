-- The arguments of a tool call are streamed like a text, to be followed from other processes. They are no message: the event
-- that such a stream becomes is an act.
ALTER TABLE {schema}.message_streams DROP CONSTRAINT IF EXISTS message_streams_role_check;
ALTER TABLE {schema}.message_streams ADD CONSTRAINT message_streams_role_check
    CHECK (role IN ('user', 'assistant', 'tool', 'system', 'thought', 'call'));
