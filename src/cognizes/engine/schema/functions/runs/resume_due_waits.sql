-- End the waits that are due: a timer fires, a user's message ends a wait for a message, and a wait that timed out takes
-- its timeout branch or fails its run. Return how many.
CREATE OR REPLACE FUNCTION {schema}.resume_due_waits() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_found record;
    v_run record;
    v_message record;
    v_count bigint := 0;
BEGIN
    FOR v_found IN
        SELECT thread_id, id FROM {schema}.runs
         WHERE status = 'waiting' AND wait_expires_at <= clock_timestamp()
         UNION
        SELECT r.thread_id, r.id FROM {schema}.runs r
         WHERE r.status = 'waiting' AND r.wait_kind = 'message'
           AND EXISTS (SELECT FROM {schema}.messages m
                        WHERE m.thread_id = r.thread_id AND m.sequence_num > r.wait_after AND m.role = 'user')
         ORDER BY thread_id, id
    LOOP
        PERFORM FROM {schema}.threads WHERE id = v_found.thread_id FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- Checked again under the lock: a signal may have ended the wait in between.
        SELECT * INTO v_run FROM {schema}.runs
         WHERE thread_id = v_found.thread_id AND id = v_found.id AND status = 'waiting' FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF v_run.wait_kind = 'message' THEN
            SELECT m.id, m.sequence_num, m.content INTO v_message FROM {schema}.messages m
             WHERE m.thread_id = v_run.thread_id AND m.sequence_num > v_run.wait_after AND m.role = 'user'
             ORDER BY m.sequence_num LIMIT 1;
            IF FOUND THEN
                PERFORM {schema}.resolve_wait(
                    v_run.thread_id, v_run.id, 'message',
                    json_build_object('text', v_message.content, 'message_id', v_message.id,
                                      'sequence_num', v_message.sequence_num));
                v_count := v_count + 1;
                CONTINUE;
            END IF;
        END IF;
        CONTINUE WHEN v_run.wait_expires_at IS NULL OR v_run.wait_expires_at > clock_timestamp();
        IF v_run.wait_kind = 'timer' THEN
            PERFORM {schema}.resolve_wait(v_run.thread_id, v_run.id, 'timer', 'null');
        ELSIF v_run.wait_timeout_node IS NOT NULL THEN
            PERFORM {schema}.resolve_wait(v_run.thread_id, v_run.id, 'timeout', 'null');
        ELSE
            PERFORM {schema}.end_runs(
                ARRAY[v_run.thread_id], ARRAY[v_run.id], NULL, ARRAY['failed'], NULL,
                ARRAY[format('no answer to %s arrived in time', v_run.wait_key)], ARRAY[gen_random_uuid()::text], NULL,
                true);
        END IF;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END
$$;
