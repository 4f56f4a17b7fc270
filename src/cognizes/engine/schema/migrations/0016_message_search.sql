-- What a deleted session leaves behind is found by its session id, whichever agent wrote it.
CREATE INDEX IF NOT EXISTS idx_agent_episodic_chunks_of_session
    ON {schema}.agent_episodic_chunks (app_name, user_id, md5(session_id)) WHERE session_id IS NOT NULL;

COMMENT ON COLUMN {schema}.memory_deletions.source IS
    'A digest of agent, session and source id; of a deleted session, of its id alone.';

-- Messages are found by their words and by their meaning. A background task writes `terms` (the keys of the words, once for
-- the app and once for the user) and `embedding` with one update; an append writes neither. `embedding_model` says who made
-- the vector. A message without terms waits to be indexed; one without a model has no vector, and waits for an embedder.
ALTER TABLE {schema}.messages ADD COLUMN IF NOT EXISTS terms bigint[];
ALTER TABLE {schema}.messages ADD COLUMN IF NOT EXISTS embedding_model text;

COMMENT ON COLUMN {schema}.messages.terms IS 'The keys of its words; null while it waits to be indexed.';
COMMENT ON COLUMN {schema}.messages.embedding_model IS 'The model that made the vector, or refused the text; null while it has none.';

-- All that an append pays: an entry at the end of a small index, which leaves it when the message is indexed.
CREATE INDEX IF NOT EXISTS idx_messages_waiting ON {schema}.messages (created_at) WHERE terms IS NULL AND content <> '';
CREATE INDEX IF NOT EXISTS idx_messages_without_vector ON {schema}.messages (created_at)
    WHERE terms IS NOT NULL AND embedding_model IS NULL;
CREATE INDEX IF NOT EXISTS idx_messages_terms ON {schema}.messages USING gin (terms) WITH (fastupdate = off)
    WHERE terms IS NOT NULL;
