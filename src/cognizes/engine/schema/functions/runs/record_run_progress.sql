-- Add a thinking step, a tool call or a tool's result to a running run, with its event, and extend the lease once half
-- of it has passed. A result is written into the call of the same id. Without an event id no event is written (the event of
-- an adapter carries the same), and an entry that equals the last one is not added again: its writer lost the answer.
-- SQLSTATE CZ404: no such run or call; CZ422: the run is not running; CZ423: p_attempt (null: not checked) does not hold it.
CREATE OR REPLACE FUNCTION {schema}.record_run_progress(
    p_thread_id uuid, p_run_id text, p_kind text, p_entry jsonb, p_event_id text, p_content json,
    p_attempt integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_owner text;
    v_place integer;
BEGIN
    SELECT * INTO v_run FROM {schema}.lock_run(p_thread_id, p_run_id, p_attempt, NULL);
    IF v_run.status <> 'running' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; only a running run makes progress', p_run_id, v_run.status);
    END IF;
    IF v_run.lease_expires_at < clock_timestamp() + v_run.lease_duration / 2 THEN
        UPDATE {schema}.runs SET lease_expires_at = clock_timestamp() + v_run.lease_duration
         WHERE thread_id = p_thread_id AND id = p_run_id;
    END IF;
    IF p_kind = 'thought' THEN
        UPDATE {schema}.runs SET thinking_steps = thinking_steps || p_entry
         WHERE thread_id = p_thread_id AND id = p_run_id AND (thinking_steps -> -1) IS DISTINCT FROM p_entry;
    ELSIF p_kind = 'act' THEN
        UPDATE {schema}.runs SET tool_calls = tool_calls || p_entry
         WHERE thread_id = p_thread_id AND id = p_run_id AND (tool_calls -> -1) IS DISTINCT FROM p_entry;
    ELSE
        -- A run that resumes another one answers the call of that one.
        SELECT r.id, call.place - 1 INTO v_owner, v_place
          FROM {schema}.runs r, jsonb_array_elements(r.tool_calls) WITH ORDINALITY AS call (entry, place)
         WHERE r.thread_id = p_thread_id AND call.entry ->> 'id' = p_entry ->> 'id'
         ORDER BY (r.id = p_run_id) DESC, r.created_at DESC, call.place DESC LIMIT 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'CZ404',
                MESSAGE = format('run %s made no tool call %s', p_run_id, p_entry ->> 'id');
        END IF;
        UPDATE {schema}.runs
           SET tool_calls = jsonb_set(tool_calls, ARRAY[v_place::text], (tool_calls -> v_place) || p_entry)
         WHERE thread_id = p_thread_id AND id = v_owner;
    END IF;
    IF p_event_id IS NOT NULL THEN
        PERFORM {schema}.append_run_event(p_thread_id, p_run_id, p_event_id, p_kind, p_content);
    END IF;
END
$$;
