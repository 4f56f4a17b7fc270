-- Releases the runs whose lease expired, each with an event: `release_run` decides whether the run is claimable again or
-- fails. Returns how many.
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
        -- Checked again under the lock: the lease may have been extended in between. A transaction that extends leases
        -- now is not waited for: it may wait for a run that was released here before.
        IF FOUND AND EXISTS (
            SELECT FROM {schema}.runs WHERE thread_id = v_run.thread_id AND id = v_run.id
               AND status = 'running' AND lease_expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED
        ) THEN
            PERFORM {schema}.release_run(
                v_run.thread_id, v_run.id, NULL,
                CASE WHEN v_run.handler IS NULL THEN 'the process that executed the run went away'
                     ELSE 'the lease of its worker ran out' END,
                interval '0', interval '0', gen_random_uuid()::text);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END
$$;
