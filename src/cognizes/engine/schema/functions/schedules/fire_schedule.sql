-- Fire a schedule: create a run for each of p_due_at, with its event, and move the schedule to p_next_at, in one transaction.
-- It changes nothing and returns no rows when the schedule is paused or deleted, when another process fires it now, or when its
-- next time is not p_expected: another process has fired it. p_thread_ids are the ids of the sessions that are created; they
-- are not used by a schedule with a thread.
CREATE OR REPLACE FUNCTION {schema}.fire_schedule(
    p_schedule_id uuid, p_expected timestamptz, p_next_at timestamptz, p_due_at timestamptz[], p_thread_ids uuid[],
    p_run_ids text[]
) RETURNS TABLE (thread_id uuid, run_id text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_schedule {schema}.schedules;
    v_place integer;
BEGIN
    -- The thread is locked before the schedule, as by a deletion of the thread.
    PERFORM FROM {schema}.threads t
      WHERE t.id = (SELECT s.thread_id FROM {schema}.schedules s WHERE s.id = p_schedule_id) FOR NO KEY UPDATE;
    SELECT * INTO v_schedule FROM {schema}.schedules s
     WHERE s.id = p_schedule_id AND s.next_at = p_expected AND s.paused_at IS NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE {schema}.schedules s SET next_at = p_next_at WHERE s.id = p_schedule_id;
    FOR v_place IN 1 .. coalesce(cardinality(p_due_at), 0) LOOP
        thread_id := v_schedule.thread_id;
        run_id := p_run_ids[v_place];
        IF thread_id IS NULL THEN
            thread_id := p_thread_ids[v_place];
            PERFORM {schema}.create_sessions(
                ARRAY[thread_id], ARRAY[v_schedule.app_name], ARRAY[v_schedule.user_id], ARRAY[thread_id::text],
                ARRAY[v_schedule.name], NULL, NULL, NULL, NULL, 2147483647);
        END IF;
        PERFORM {schema}.create_run(
            thread_id, run_id, 'pending', v_schedule.handler, v_schedule.input, v_schedule.max_attempts, NULL, NULL, NULL,
            gen_random_uuid()::text,
            json_build_object('run_id', run_id, 'status', 'pending', 'handler', v_schedule.handler,
                              'schedule_id', v_schedule.id, 'due_at', p_due_at[v_place]),
            v_schedule.queue, v_schedule.priority);
        INSERT INTO {schema}.schedule_firings (schedule_id, due_at, app_name, thread_id, run_id)
        VALUES (v_schedule.id, p_due_at[v_place], v_schedule.app_name, thread_id, run_id);
        RETURN NEXT;
    END LOOP;
END
$$;
