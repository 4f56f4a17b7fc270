-- Create a branch that forks at an event (null: the newest), and append an event about it. Its parent is the branch of
-- that event. Readers follow the ancestors, so their number is limited.
-- SQLSTATE CZ404: no such thread or event; CZ409: the name is taken, or the parent is nested too deep.
CREATE OR REPLACE FUNCTION {schema}.create_branch(p_thread_id uuid, p_name text, p_at_sequence bigint, p_event_id text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_max_depth CONSTANT integer := 100;
    v_thread record;
    v_at bigint;
    v_parent integer;
BEGIN
    SELECT app_name, last_sequence INTO v_thread FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    v_at := coalesce(p_at_sequence, v_thread.last_sequence);
    IF v_at > v_thread.last_sequence THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE =
            format('event %s has not happened yet; the thread is at %s', v_at, v_thread.last_sequence);
    END IF;
    IF p_name = 'main' OR EXISTS (SELECT FROM {schema}.branches
                                   WHERE thread_id = p_thread_id AND name = p_name AND deleted_at IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format('branch %L exists already; choose another name', p_name);
    END IF;
    v_parent := coalesce((SELECT branch FROM {schema}.branch_segments
                           WHERE thread_id = p_thread_id AND from_sequence <= v_at
                           ORDER BY from_sequence DESC LIMIT 1), 0);
    IF EXISTS (SELECT FROM {schema}.branches
                WHERE thread_id = p_thread_id AND number = v_parent AND deleted_at IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('event %s was on a branch that is deleted', v_at);
    END IF;
    IF v_max_depth <= (
        WITH RECURSIVE line (number) AS (
            SELECT v_parent
            UNION ALL
            SELECT b.parent FROM line JOIN {schema}.branches b ON b.thread_id = p_thread_id AND b.number = line.number
        )
        SELECT count(*) - 1 FROM line
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE = format(
            'event %s is on a branch that is nested %s deep, which is the limit; fork at an earlier event, or fork the '
            'session and continue there', v_at, v_max_depth);
    END IF;
    INSERT INTO {schema}.branches (thread_id, number, app_name, name, parent, forked_at)
    SELECT p_thread_id, coalesce(max(number), 0) + 1, v_thread.app_name, p_name, v_parent, v_at
      FROM {schema}.branches WHERE thread_id = p_thread_id;
    PERFORM {schema}.append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'branch_created',
        json_build_object('name', p_name, 'at_sequence', v_at), '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, false,
        true, 0, 0);
END
$$;
