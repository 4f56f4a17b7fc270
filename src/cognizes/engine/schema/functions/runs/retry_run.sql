-- Make a failed run pending again, with all its attempts and its event. SQLSTATE CZ404: no such run; CZ422: it has not
-- failed.
CREATE OR REPLACE FUNCTION {schema}.retry_run(p_thread_id uuid, p_run_id text, p_event_id text)
RETURNS SETOF {schema}.run_rows LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    SELECT * INTO v_run FROM {schema}.lock_run(p_thread_id, p_run_id, NULL, 'pending');
    IF v_run.status <> 'failed' THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ422',
            MESSAGE = format('run %s is %s; only a failed run can be tried again', p_run_id, v_run.status);
    END IF;
    UPDATE {schema}.runs SET status = 'pending', error = NULL, failures = 0, completed_at = NULL
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, p_event_id, 'run_retried',
        json_build_object('run_id', p_run_id, 'status', 'pending'));
    RETURN QUERY SELECT * FROM {schema}.run_rows WHERE thread_id = p_thread_id AND id = p_run_id;
END
$$;
