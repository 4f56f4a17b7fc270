-- Delete the entries that only deleted conversations used: the trigger function of deletions of conversation_records.
CREATE OR REPLACE FUNCTION {schema}.delete_conversation_entries() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_tree record;
BEGIN
    FOR v_tree IN SELECT DISTINCT d.app_name, root.id FROM deleted d, unnest(d.roots) root (id) ORDER BY 1, 2 LOOP
        -- A writer that points at an entry of this tree holds a share of the lock until its record is visible here.
        PERFORM FROM {schema}.conversation_entries e WHERE e.app_name = v_tree.app_name AND e.id = v_tree.id FOR UPDATE;
        WITH RECURSIVE kept AS (
            SELECT e.id, e.parent_id
              FROM {schema}.conversation_records r
              JOIN {schema}.conversation_entries e
                ON e.app_name = r.app_name AND e.root_id = v_tree.id AND e.id = ANY (r.branches || r.head_id)
             WHERE r.app_name = v_tree.app_name AND r.roots @> ARRAY[v_tree.id]
            UNION
            SELECT e.id, e.parent_id
              FROM kept k JOIN {schema}.conversation_entries e ON e.app_name = v_tree.app_name AND e.id = k.parent_id
        )
        DELETE FROM {schema}.conversation_entries e
         WHERE e.app_name = v_tree.app_name AND e.root_id = v_tree.id AND e.id NOT IN (SELECT id FROM kept);
    END LOOP;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER delete_conversation_entries AFTER DELETE ON {schema}.conversation_records
    REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION {schema}.delete_conversation_entries();

-- Delete a conversation whose revision is the expected one; return whether there was one. The trigger deletes its entries.
CREATE OR REPLACE FUNCTION {schema}.delete_conversation(p_app_name text, p_conversation_id text, p_revision text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.conversation_records
     WHERE app_name = p_app_name AND md5(conversation_id) = md5(p_conversation_id) AND conversation_id = p_conversation_id
       AND revision = p_revision;
    RETURN FOUND;
END
$$;
