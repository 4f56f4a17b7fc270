-- What a deleted session leaves behind is found by its session id, whichever agent wrote it.
CREATE INDEX IF NOT EXISTS idx_agent_episodic_chunks_of_session
    ON {schema}.agent_episodic_chunks (app_name, user_id, md5(session_id)) WHERE session_id IS NOT NULL;

COMMENT ON COLUMN {schema}.memory_deletions.source IS
    'A digest of agent, session and source id; of a deleted session, of its id alone.';
