-- Give one pending run to a worker, whatever its handler: its next attempt begins, with a lease. With p_from_waiting it
-- also takes a run whose wait is not over. SQLSTATE CZ404: no such run; CZ409, CZ422: the run is neither.
CREATE OR REPLACE FUNCTION {schema}.claim_run(
    p_thread_id uuid, p_run_id text, p_worker_id text, p_lease interval, p_event_id text, p_from_waiting boolean
) RETURNS SETOF {schema}.run_rows LANGUAGE plpgsql AS $$
DECLARE
    v_attempt integer;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    UPDATE {schema}.runs
       SET status = 'running', attempt = attempt + 1, worker_id = p_worker_id, available_at = NULL,
           claimable_since = greatest(created_at, available_at),
           lease_duration = p_lease, lease_expires_at = clock_timestamp() + p_lease,
           started_at = coalesce(started_at, clock_timestamp())
     WHERE thread_id = p_thread_id AND id = p_run_id
       AND (status = 'pending' OR p_from_waiting AND status = 'waiting')
    RETURNING attempt INTO v_attempt;
    IF NOT FOUND THEN
        PERFORM {schema}.lock_run(p_thread_id, p_run_id, NULL, 'running');
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s is waiting; only a pending run can be claimed', p_run_id);
    END IF;
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, p_event_id, CASE WHEN v_attempt = 1 THEN 'run_started' ELSE 'run_resumed' END,
        json_build_object('run_id', p_run_id, 'status', 'running', 'attempt', v_attempt, 'worker_id', p_worker_id));
    RETURN QUERY SELECT * FROM {schema}.run_rows WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;
