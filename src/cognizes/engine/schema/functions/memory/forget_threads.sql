-- Return whether a session was deleted and not created again. Writers check it, because data that they read before the
-- deletion must not be stored after it. A session of another service, which the engine never stored, was not deleted.
CREATE OR REPLACE FUNCTION {schema}.is_deleted_session(p_app_name text, p_user_id text, p_session_id text)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.memory_deletions
                    WHERE app_name = p_app_name
                      AND user_id = ANY (ARRAY[p_user_id, {schema}.erased_name(p_app_name, p_user_id)])
                      AND source = md5(chr(1) || p_session_id))
           AND NOT EXISTS (SELECT FROM {schema}.threads
                            WHERE app_name = p_app_name AND user_id = p_user_id
                              AND md5(session_id) = md5(p_session_id) AND session_id = p_session_id)
$$;

-- Delete the rows of deleted threads in tables that refer to them by session id, in the transaction of the deletion.
-- Facts, and the state of the user and the app, do not belong to the session and stay.
CREATE OR REPLACE FUNCTION {schema}.forget_threads() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    -- The lock of every writer of a user's memories: waits for writers that began before the deletion; later ones see
    -- that the session is deleted. Locks are taken in one order, because a deletion may concern many users.
    PERFORM pg_advisory_xact_lock(lock.key)
       FROM (SELECT DISTINCT hashtextextended('memory ' || app_name || chr(1) || user_id, 0) AS key
               FROM gone ORDER BY 1) lock;
    INSERT INTO {schema}.memory_deletions (app_name, user_id, source)
    SELECT app_name, user_id, md5(chr(1) || session_id) FROM gone ORDER BY app_name, user_id, session_id
    ON CONFLICT (app_name, user_id, source) DO UPDATE SET deleted_at = excluded.deleted_at;
    DELETE FROM {schema}.memories m USING gone g
     WHERE m.app_name = g.app_name AND m.user_id = g.user_id AND md5(m.session_id) = md5(g.session_id)
       AND m.session_id = g.session_id;
    DELETE FROM {schema}.agent_episodic_chunks e USING gone g
     WHERE e.app_name = g.app_name AND e.user_id = g.user_id AND md5(e.session_id) = md5(g.session_id)
       AND e.session_id = g.session_id;
    DELETE FROM {schema}.agent_states s USING gone g
     WHERE s.app_name = g.app_name AND s.user_id = g.user_id AND md5(s.session_id) = md5(g.session_id)
       AND s.session_id = g.session_id;
    DELETE FROM {schema}.artifacts a USING gone g
     WHERE a.app_name = g.app_name AND a.user_id = g.user_id AND md5(coalesce(a.session_id, '')) = md5(g.session_id)
       AND a.session_id = g.session_id;
    DELETE FROM {schema}.message_chunks c USING gone g WHERE c.thread_id = g.id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER forget_threads AFTER DELETE ON {schema}.threads
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {schema}.forget_threads();
