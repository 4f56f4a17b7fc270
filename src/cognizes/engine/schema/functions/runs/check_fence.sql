-- Return true if an attempt holds a run; a null attempt is not checked. SQLSTATE CZ404: no such run; CZ423: another
-- attempt holds it, or none. The function locks the thread, as every change of a run does first: the result holds until
-- the commit.
CREATE OR REPLACE FUNCTION {schema}.check_fence(p_thread_id uuid, p_run_id text, p_attempt integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    IF p_attempt IS NULL THEN
        RETURN true;
    END IF;
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    SELECT status, attempt INTO v_run FROM {schema}.runs WHERE thread_id = p_thread_id AND id = p_run_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404',
            MESSAGE = format('there is no run %s in thread %s', p_run_id, p_thread_id);
    END IF;
    IF v_run.status <> 'running' OR v_run.attempt <> p_attempt THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ423',
            MESSAGE = format('run %s is %s, at attempt %s; attempt %s holds it no longer and cannot write', p_run_id,
                             v_run.status, v_run.attempt, p_attempt);
    END IF;
    RETURN true;
END
$$;
