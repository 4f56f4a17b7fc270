-- Lock a thread, then one of its runs (the same order everywhere), and return what the caller decides by.
-- SQLSTATE CZ404: no such run; CZ423: p_attempt (null: not checked) does not hold the run; CZ422: the run cannot become
-- p_status (null: not checked).
CREATE OR REPLACE FUNCTION {schema}.lock_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_status text,
    OUT app_name text, OUT status text, OUT attempt integer, OUT handler text, OUT failures integer,
    OUT max_attempts integer, OUT lease_duration interval, OUT lease_expires_at timestamptz, OUT wait_kind text,
    OUT wait_key text, OUT wait_expires_at timestamptz
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT r.app_name, r.status, r.attempt, r.handler, r.failures, r.max_attempts, r.lease_duration,
           r.lease_expires_at, r.wait_kind, r.wait_key, r.wait_expires_at
      INTO app_name, status, attempt, handler, failures, max_attempts, lease_duration,
           lease_expires_at, wait_kind, wait_key, wait_expires_at
      FROM {schema}.runs r WHERE r.thread_id = p_thread_id AND r.id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    IF p_attempt IS NOT NULL AND (status <> 'running' OR attempt <> p_attempt) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ423',
            MESSAGE = format('run %s is %s, at attempt %s; attempt %s holds it no longer and cannot write', p_run_id,
                             status, attempt, p_attempt);
    END IF;
    IF p_status IS NOT NULL AND NOT {schema}.run_transition_allowed(status, p_status) THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; it cannot become %s', p_run_id, status, p_status);
    END IF;
END
$$;
