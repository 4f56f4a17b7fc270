-- Make a branch the active one. The appended event is the first of a new segment, and its delta restores the session's
-- state at the tip of the branch. So the state after any event is that of its branch, and replays ignore branches.
-- Status:
--   switched  `sequence_num` is that of the event
--   same      it is already the active one; nothing was written
--   conflict  the state has changed; compute the delta again
-- SQLSTATE CZ404: no such thread or branch; CZ409: a run is active, whose events would be appended to the wrong branch.
CREATE OR REPLACE FUNCTION {schema}.switch_branch(
    p_thread_id uuid, p_name text, p_event_id text, p_actions json, p_delta jsonb, p_expected_version bigint,
    p_max_state_bytes integer, OUT status text, OUT sequence_num bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_app_name text;
    v_number integer;
    v_active integer;
    v_run text;
BEGIN
    SELECT app_name INTO v_app_name FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no thread %s', p_thread_id);
    END IF;
    v_number := {schema}.find_branch(p_thread_id, p_name);
    v_active := {schema}.find_branch(p_thread_id, NULL);
    IF v_number = v_active THEN
        status := 'same';
        RETURN;
    END IF;
    SELECT id INTO v_run FROM {schema}.runs
     WHERE thread_id = p_thread_id AND status IN ('running', 'waiting') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409', MESSAGE =
            format('run %s is active in this thread; wait for its end or cancel it, then switch', left(v_run, 200));
    END IF;
    SELECT answer.status, answer.sequence_num INTO status, sequence_num
      FROM {schema}.append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'branch_switched',
        json_build_object('name', p_name, 'from',
            coalesce((SELECT name FROM {schema}.branches WHERE thread_id = p_thread_id AND number = v_active), 'main')),
        p_actions, p_delta, NULL, NULL, p_expected_version, NULL, NULL, NULL, false, true, 0, p_max_state_bytes)
        AS answer;
    IF status = 'stored' THEN
        INSERT INTO {schema}.branch_segments (thread_id, from_sequence, app_name, branch)
        VALUES (p_thread_id, switch_branch.sequence_num, v_app_name, v_number);
        status := 'switched';
    END IF;
END
$$;
