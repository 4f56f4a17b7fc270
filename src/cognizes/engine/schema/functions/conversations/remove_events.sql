-- Removes a range of events from the active branch of a thread, and appends an event about it. The log keeps the events.
-- The caller holds the thread's row lock. Returns the status of that append: `stored` or `fenced`.
CREATE OR REPLACE FUNCTION {schema}.remove_events(
    p_thread_id uuid, p_branches integer[], p_first bigint, p_last bigint, p_event_id text, p_fence_run_id text,
    p_fence_attempt integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_status text;
BEGIN
    SELECT answer.status INTO v_status
      FROM {schema}.append_event(
        p_thread_id, p_event_id, NULL, '', 'system', 'messages_removed',
        json_build_object('first_sequence', p_first, 'last_sequence', p_last), '{}',
        p_fence_run_id => p_fence_run_id, p_fence_attempt => p_fence_attempt) AS answer;
    IF v_status = 'stored' THEN
        INSERT INTO {schema}.hidden_events (thread_id, branch, app_name, first_sequence, last_sequence)
        SELECT p_thread_id, branch, t.app_name, p_first, p_last
          FROM {schema}.threads t, unnest(p_branches) AS branch WHERE t.id = p_thread_id;
    END IF;
    RETURN v_status;
END
$$;

-- Removes the newest event of the given kinds from the active branch of a session, and returns it. A thought counts only with
-- the mark of a framework's item. Status: null if there is no such event. Sent again after a lost answer, with the same id of
-- the event about it, it answers as before.
CREATE OR REPLACE FUNCTION {schema}.pop_event(
    p_app_name text, p_user_id text, p_session_id text, p_kinds text[], p_mark text, p_event_id text,
    p_fence_run_id text, p_fence_attempt integer,
    OUT status text, OUT thread_id uuid, OUT event {schema}.events
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT id INTO thread_id FROM {schema}.threads
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(session_id) = md5(p_session_id)
       AND session_id = p_session_id
       FOR NO KEY UPDATE;
    SELECT e.* INTO event
      FROM {schema}.events r
      JOIN {schema}.events e ON e.thread_id = r.thread_id AND e.sequence_num = (r.content ->> 'first_sequence')::bigint
     WHERE r.thread_id = pop_event.thread_id AND md5(r.id) = md5(p_event_id) AND r.id = p_event_id;
    IF FOUND THEN
        status := 'stored';
        RETURN;
    END IF;
    SELECT newest.* INTO event
      FROM {schema}.branch_path(pop_event.thread_id, NULL) AS path
     CROSS JOIN LATERAL (
            SELECT * FROM {schema}.events e
             WHERE e.thread_id = pop_event.thread_id
               AND e.sequence_num BETWEEN path.first_sequence AND path.last_sequence
               AND e.event_type = ANY (p_kinds)
               AND (e.event_type <> 'thought' OR starts_with(left(e.content::text, length(p_mark)), p_mark))
             ORDER BY e.sequence_num DESC
             LIMIT 1) AS newest
     ORDER BY newest.sequence_num DESC
     LIMIT 1;
    IF (event).sequence_num IS NOT NULL THEN
        status := {schema}.remove_events(
            pop_event.thread_id, ARRAY[{schema}.find_branch(pop_event.thread_id, NULL)], (event).sequence_num,
            (event).sequence_num, p_event_id, p_fence_run_id, p_fence_attempt);
    END IF;
END
$$;

-- Removes all events of a session from all of its branches. Status: null if there is no such session.
CREATE OR REPLACE FUNCTION {schema}.clear_session(
    p_app_name text, p_user_id text, p_session_id text, p_event_id text, p_fence_run_id text, p_fence_attempt integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_thread record;
BEGIN
    SELECT id, last_sequence INTO v_thread FROM {schema}.threads
     WHERE app_name = p_app_name AND user_id = p_user_id AND md5(session_id) = md5(p_session_id)
       AND session_id = p_session_id
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF v_thread.last_sequence = 0 OR EXISTS (
        SELECT FROM {schema}.events WHERE thread_id = v_thread.id AND md5(id) = md5(p_event_id) AND id = p_event_id
    ) THEN
        RETURN 'stored';
    END IF;
    RETURN {schema}.remove_events(
        v_thread.id,
        ARRAY(SELECT 0 UNION ALL SELECT number FROM {schema}.branches
               WHERE thread_id = v_thread.id AND deleted_at IS NULL),
        1, v_thread.last_sequence, p_event_id, p_fence_run_id, p_fence_attempt);
END
$$;
