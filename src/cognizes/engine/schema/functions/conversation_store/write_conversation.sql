-- Store a record and its new entries, each behind its parent, if the stored revision is the expected one (null: there is
-- no record). Returns false, and changes nothing, if it is not, or if the head or a parent was deleted. A repeated call
-- finds its own revision stored.
CREATE OR REPLACE FUNCTION {schema}.write_conversation(
    p_app_name text, p_conversation_id text, p_user_id text, p_head_id text, p_branches text[], p_document text,
    p_revision text, p_updated_at timestamptz, p_written_by text, p_expected_revision text, p_is_repeated boolean,
    p_ids text[], p_parent_ids text[], p_kinds text[], p_messages text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_revision text;
    v_roots text[];
    v_known integer;
BEGIN
    SELECT r.revision INTO v_revision FROM {schema}.conversation_records r
     WHERE r.app_name = p_app_name AND md5(r.conversation_id) = md5(p_conversation_id)
       AND r.conversation_id = p_conversation_id FOR UPDATE;
    IF p_is_repeated AND v_revision = p_revision THEN
        RETURN true;
    END IF;
    IF v_revision IS DISTINCT FROM p_expected_revision THEN
        RETURN false;
    END IF;
    -- The stored entries that this write points at, and their roots. The deletion of a conversation locks the roots before
    -- it deletes entries; so the entries that are found after the lock stay until the commit.
    PERFORM FROM {schema}.conversation_entries root
      WHERE root.app_name = p_app_name
        AND root.id IN (SELECT e.root_id FROM {schema}.conversation_entries e
                         WHERE e.app_name = p_app_name AND e.id = ANY (p_parent_ids || p_branches || p_head_id))
      ORDER BY root.id FOR KEY SHARE;
    SELECT count(*) INTO v_known FROM {schema}.conversation_entries e
     WHERE e.app_name = p_app_name AND e.id IN (SELECT unnest(p_parent_ids || p_head_id) EXCEPT SELECT unnest(p_ids));
    IF v_known < (SELECT count(*) FROM (SELECT unnest(p_parent_ids || p_head_id) EXCEPT SELECT unnest(p_ids)) needed (id)
                   WHERE needed.id IS NOT NULL) THEN
        RETURN false;
    END IF;
    FOR v_place IN 1 .. cardinality(p_ids) LOOP
        INSERT INTO {schema}.conversation_entries (app_name, id, parent_id, root_id, kind, message, written_by)
        VALUES (p_app_name, p_ids[v_place], p_parent_ids[v_place],
                coalesce((SELECT e.root_id FROM {schema}.conversation_entries e
                           WHERE e.app_name = p_app_name AND e.id = p_parent_ids[v_place]), p_ids[v_place]),
                p_kinds[v_place], p_messages[v_place]::json, p_written_by);
    END LOOP;
    SELECT coalesce(array_agg(DISTINCT e.root_id), '{}') INTO v_roots FROM {schema}.conversation_entries e
     WHERE e.app_name = p_app_name AND e.id = ANY (p_branches || p_head_id);
    INSERT INTO {schema}.conversation_records AS r (
        app_name, conversation_id, user_id, head_id, branches, roots, document, revision, updated_at, written_by)
    VALUES (p_app_name, p_conversation_id, p_user_id, p_head_id, p_branches, v_roots, p_document::json, p_revision,
            p_updated_at, p_written_by)
    ON CONFLICT (app_name, md5(conversation_id)) DO UPDATE
       SET user_id = excluded.user_id, head_id = excluded.head_id, branches = excluded.branches, roots = excluded.roots,
           document = excluded.document, revision = excluded.revision, updated_at = excluded.updated_at,
           written_by = excluded.written_by
     WHERE r.revision = p_expected_revision;
    IF NOT FOUND THEN
        -- Another writer created the record. The entries that were inserted above belong to no record.
        DELETE FROM {schema}.conversation_entries e WHERE e.app_name = p_app_name AND e.id = ANY (p_ids);
        RETURN false;
    END IF;
    RETURN true;
END
$$;
