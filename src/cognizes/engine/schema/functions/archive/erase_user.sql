-- Return the name of an erased user in `memory_deletions`, from which the user cannot be read.
CREATE OR REPLACE FUNCTION {schema}.erased_name(p_app_name text, p_user_id text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'erased ' || encode(sha256(convert_to(p_app_name || chr(1) || p_user_id, 'UTF8')), 'hex')
$$;

-- Delete all rows of one user of an app in one transaction: sessions with everything that belongs to them, memories, state,
-- tickets, and API keys that are valid for this user and app alone. Entries of the audit log stay; the names of the user, of
-- the sessions and of the threads in them become a pseudonym. Returns the number of rows per table.
CREATE OR REPLACE FUNCTION {schema}.erase_user(p_app_name text, p_user_id text, p_pseudonym text)
RETURNS TABLE (table_name text, rows bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_table record;
    v_threads uuid[];
    v_names text[];
    v_keys text[];
BEGIN
    -- The lock of every writer of a user's memories: no writer stores a memory between the two deletions.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    -- A schedule that fires now creates its session before the threads are read; a locked one does not fire.
    PERFORM FROM {schema}.schedules WHERE app_name = p_app_name AND user_id = p_user_id ORDER BY id FOR UPDATE;
    SELECT coalesce(array_agg(t.id), '{}'), coalesce(array_agg(t.session_id), '{}')
      INTO v_threads, v_names
      FROM (SELECT id, session_id FROM {schema}.threads
             WHERE app_name = p_app_name AND user_id = p_user_id ORDER BY id FOR UPDATE) t;
    v_names := v_names || v_threads::text[] || p_user_id;
    FOR v_table IN SELECT * FROM {schema}.user_tables() LOOP
        table_name := v_table.name;
        EXECUTE format('SELECT count(*) FROM {schema}.%I r WHERE %s', v_table.name, v_table.condition)
           INTO rows USING p_app_name, p_user_id;
        IF rows > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    DELETE FROM {schema}.threads WHERE id = ANY (v_threads);
    -- Writers that read a session before still find that it was deleted, by a name that is not the user's.
    DELETE FROM {schema}.memory_deletions d
     WHERE d.app_name = p_app_name
       AND (d.user_id = {schema}.erased_name(p_app_name, p_user_id)
            OR d.user_id LIKE 'erased %' AND d.deleted_at < now() - interval '1 day');
    UPDATE {schema}.memory_deletions d SET user_id = {schema}.erased_name(p_app_name, p_user_id)
     WHERE d.app_name = p_app_name AND d.user_id = p_user_id;
    FOR v_table IN SELECT * FROM {schema}.user_tables() WHERE name <> 'threads' LOOP
        IF v_table.key = 'user_id' THEN
            EXECUTE format('DELETE FROM {schema}.%I WHERE app_name = $1 AND user_id = $2', v_table.name)
              USING p_app_name, p_user_id;
        ELSIF NOT v_table.is_cascaded THEN
            EXECUTE format('DELETE FROM {schema}.%I WHERE thread_id = ANY ($1)', v_table.name) USING v_threads;
        END IF;
    END LOOP;

    table_name := 'access_tickets';
    DELETE FROM {schema}.access_tickets t WHERE t.user_id = p_user_id AND t.app_names <@ ARRAY[p_app_name];
    GET DIAGNOSTICS rows = ROW_COUNT;
    IF rows > 0 THEN
        RETURN NEXT;
    END IF;
    table_name := 'api_keys';
    WITH gone AS (
        DELETE FROM {schema}.api_keys k
         WHERE k.user_id = p_user_id AND k.app_names <@ ARRAY[p_app_name] RETURNING k.id
    )
    SELECT count(*), array_agg('key:' || id) INTO rows, v_keys FROM gone;
    IF rows > 0 THEN
        RETURN NEXT;
    END IF;
    table_name := 'audit_log';
    UPDATE {schema}.audit_log a
       SET actor = CASE WHEN a.actor = ANY (v_names || v_keys || ('jwt:' || p_user_id)) THEN p_pseudonym ELSE a.actor END,
           target = (SELECT string_agg(CASE WHEN part.segment = ANY (v_names) THEN p_pseudonym ELSE part.segment END,
                                       '/' ORDER BY part.place)
                       FROM string_to_table(a.target, '/') WITH ORDINALITY AS part (segment, place))
     WHERE a.app_name = p_app_name
           AND (a.actor = ANY (v_names || v_keys || ('jwt:' || p_user_id)) OR string_to_array(a.target, '/') && v_names)
        -- Entries of callers that belong to no app: ids of threads are unique, other names need the app beside them.
        OR a.app_name = '*' AND (string_to_array(a.target, '/') && v_threads::text[]
                                 OR string_to_array(a.target, '/') && v_names
                                    AND p_app_name = ANY (string_to_array(a.target, '/')));
    GET DIAGNOSTICS rows = ROW_COUNT;
    IF rows > 0 THEN
        RETURN NEXT;
    END IF;
END
$$;
