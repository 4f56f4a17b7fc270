-- The size of an event as text, stored with it: a page is bounded by bytes without reading the documents of the events
-- that do not fit. PostgreSQL writes the table once for it; every way of inserting an event fills it.
ALTER TABLE {schema}.events ADD COLUMN IF NOT EXISTS bytes bigint GENERATED ALWAYS AS (
    octet_length(id) + octet_length(invocation_id) + octet_length(author) + octet_length(content::text)
    + octet_length(actions::text)) STORED;

-- Tool calls and results that have no text have no row in `messages`; a conversation shows them at their place.
CREATE INDEX IF NOT EXISTS idx_events_tools ON {schema}.events (thread_id, sequence_num)
    WHERE event_type IN ('act', 'tool_call', 'observe', 'tool_result');

-- What was counted did not include them; readers count again and leave new counts behind.
DELETE FROM {schema}.message_counts;
