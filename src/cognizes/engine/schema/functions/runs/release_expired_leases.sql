-- Makes runs whose worker fell silent claimable again, each with an event; one that had it happen too often fails, and so
-- does a run without a handler, which nobody could claim. Returns how many.
CREATE OR REPLACE FUNCTION {schema}.release_expired_leases() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_count bigint := 0;
BEGIN
    FOR v_run IN
        SELECT thread_id, id, handler FROM {schema}.runs
         WHERE status = 'running' AND lease_expires_at < clock_timestamp() ORDER BY thread_id, id
    LOOP
        PERFORM FROM {schema}.threads WHERE id = v_run.thread_id FOR NO KEY UPDATE SKIP LOCKED;
        -- Looked at again under the lock: its worker may have woken up in between. One that extends its leases right
        -- now is not waited for: it may want a run that was released here a moment ago.
        IF FOUND AND EXISTS (
            SELECT FROM {schema}.runs WHERE thread_id = v_run.thread_id AND id = v_run.id
               AND status = 'running' AND lease_expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED
        ) THEN
            IF v_run.handler IS NULL THEN
                PERFORM {schema}.change_run(
                    v_run.thread_id, v_run.id, 'failed', 'the process that executed the run went away',
                    gen_random_uuid()::text, 'run_failed',
                    json_build_object('run_id', v_run.id, 'status', 'failed',
                                      'error', 'the process that executed the run went away'));
            ELSE
                PERFORM {schema}.release_run(v_run.thread_id, v_run.id, NULL, 'the lease of its worker ran out',
                                             interval '0', interval '0', gen_random_uuid()::text);
            END IF;
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END
$$;
