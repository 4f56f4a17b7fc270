-- Gives one pending run to a worker, whatever its handler. SQLSTATE CZ404: no such run; CZ409: it is not pending.
CREATE OR REPLACE FUNCTION {schema}.claim_run(
    p_thread_id uuid, p_run_id text, p_worker_id text, p_lease interval, p_event_id text
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_status text;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT status INTO v_status FROM {schema}.runs WHERE thread_id = p_thread_id AND id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    IF v_status <> 'pending' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ409',
            MESSAGE = format('run %s is %s; only a pending run can be claimed', p_run_id, v_status);
    END IF;
    RETURN {schema}.take_run(p_thread_id, p_run_id, p_worker_id, p_lease, p_event_id);
END
$$;
