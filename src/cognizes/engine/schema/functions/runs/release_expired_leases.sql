-- Note that leases are swept now and return when the sweeps began again after the last gap longer than p_gap; null if
-- there was none. During a gap the server was away, or no process ran: workers could not extend their leases either. A gap
-- within two minutes after another one does not count: sweeps that are always slow must not keep dead runs.
CREATE OR REPLACE FUNCTION {schema}.note_lease_sweep(p_gap interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_before timestamptz;
BEGIN
    SELECT last_run_at INTO v_before FROM {schema}.maintenance_jobs WHERE name = 'lease_sweep';
    IF v_before < v_now - p_gap THEN
        INSERT INTO {schema}.maintenance_jobs AS m (name, last_run_at) VALUES ('lease_sweep_resumed', v_now)
        ON CONFLICT (name) DO UPDATE SET last_run_at = EXCLUDED.last_run_at
         WHERE m.last_run_at < v_now - interval '2 minutes';
    END IF;
    -- Written once in a second, not by each process.
    IF v_before IS NULL OR v_before < v_now - interval '1 second' THEN
        INSERT INTO {schema}.maintenance_jobs AS m (name, last_run_at) VALUES ('lease_sweep', v_now)
        ON CONFLICT (name) DO UPDATE SET last_run_at = EXCLUDED.last_run_at;
    END IF;
    RETURN (SELECT last_run_at FROM {schema}.maintenance_jobs WHERE name = 'lease_sweep_resumed');
END
$$;

-- Release the runs whose lease expired, each with an event: `release_run` decides whether the run is claimable again or
-- fails. Return how many. After a gap between two sweeps that is longer than p_gap (null: no limit), workers have the time
-- of a lease, between 5 and 30 seconds, to extend their leases or to release their runs: an outage is not their failure.
CREATE OR REPLACE FUNCTION {schema}.release_expired_leases(p_gap interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_count bigint := 0;
    v_resumed timestamptz := {schema}.note_lease_sweep(p_gap);
BEGIN
    FOR v_run IN
        SELECT thread_id, id, handler FROM {schema}.runs
         WHERE status = 'running' AND lease_expires_at < clock_timestamp()
           AND (p_gap IS NULL OR v_resumed IS NULL
                OR v_resumed < clock_timestamp()
                               - greatest(least(lease_duration, interval '30 seconds'), interval '5 seconds'))
         ORDER BY thread_id, id
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

-- The same, for schedulers that call it every ten seconds.
CREATE OR REPLACE FUNCTION {schema}.release_expired_leases() RETURNS bigint LANGUAGE sql AS $$
    SELECT {schema}.release_expired_leases(interval '25 seconds')
$$;
