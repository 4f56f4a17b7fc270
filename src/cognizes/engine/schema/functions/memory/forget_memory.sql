-- Delete memories of a user, and their facts or episodes. A forgotten message is recorded, so that storing its session again
-- does not restore it. Duplicates of a deleted memory are recalled again. Returns the ids of the deleted memories.
CREATE OR REPLACE FUNCTION {schema}.delete_memories(p_app_name text, p_user_id text, p_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_gone {schema}.memories;
    v_deleted bigint[] := '{}';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    FOR v_gone IN
        DELETE FROM {schema}.memories m
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id
           AND m.id = ANY (p_ids)
        RETURNING m.*
    LOOP
        v_deleted := v_deleted || v_gone.id;
        CASE v_gone.kind
            WHEN 'long_term' THEN
                PERFORM {schema}.delete_long_term_memory(
                    p_app_name, p_user_id, v_gone.agent_id, v_gone.namespace,
                    substr(v_gone.source_id, length(v_gone.namespace) + 2));
            WHEN 'episodic' THEN
                DELETE FROM {schema}.agent_episodic_chunks
                 WHERE app_name = p_app_name AND user_id = p_user_id AND md5(id) = md5(v_gone.source_id);
            WHEN 'turn' THEN
                INSERT INTO {schema}.memory_deletions (app_name, user_id, source)
                VALUES (p_app_name, p_user_id,
                        md5(concat_ws(chr(1), v_gone.agent_id, coalesce(v_gone.session_id, ''), v_gone.source_id)))
                ON CONFLICT DO NOTHING;
            ELSE NULL;
        END CASE;
    END LOOP;
    RETURN v_deleted;
END
$$;

-- Delete a memory, its duplicates, and their facts or episodes. Returns whether the memory existed.
CREATE OR REPLACE FUNCTION {schema}.forget_memory(p_app_name text, p_user_id text, p_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    RETURN p_id = ANY ({schema}.delete_memories(p_app_name, p_user_id, ARRAY(
        SELECT p_id UNION ALL
        SELECT d.id FROM {schema}.memories d
         WHERE d.app_name = p_app_name AND d.user_id = p_user_id AND d.duplicate_of = p_id)));
END
$$;
