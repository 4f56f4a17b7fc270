-- What a model thinks is streamed like what it says, to be followed from other processes. It is no message: the event that
-- it becomes is a thought.
ALTER TABLE {schema}.message_streams DROP CONSTRAINT IF EXISTS message_streams_role_check;
ALTER TABLE {schema}.message_streams ADD CONSTRAINT message_streams_role_check
    CHECK (role IN ('user', 'assistant', 'tool', 'system', 'thought'));
