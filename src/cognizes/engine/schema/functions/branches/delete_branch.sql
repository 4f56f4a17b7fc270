-- Delete a branch and append an event about it. Its events stay in the log and belong to no visible branch.
-- SQLSTATE CZ404: no such thread or branch; CZ409: it is `main`, the active one, or others fork from it.
CREATE OR REPLACE FUNCTION {schema}.delete_branch(p_thread_id uuid, p_name text, p_event_id text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_number integer;
    v_child text;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    v_number := {schema}.find_branch(p_thread_id, p_name);
    IF v_number = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = 'the branch main cannot be deleted';
    END IF;
    IF v_number = {schema}.find_branch(p_thread_id, NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE =
            format('branch %L is the active one; switch to another, then delete it', p_name);
    END IF;
    SELECT name INTO v_child FROM {schema}.branches
     WHERE thread_id = p_thread_id AND parent = v_number AND deleted_at IS NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format('branch %L forks from it; delete that one first', v_child);
    END IF;
    UPDATE {schema}.branches SET deleted_at = clock_timestamp() WHERE thread_id = p_thread_id AND number = v_number;
    PERFORM {schema}.append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'branch_deleted', json_build_object('name', p_name), '{}',
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, true, 0, 0);
END
$$;
