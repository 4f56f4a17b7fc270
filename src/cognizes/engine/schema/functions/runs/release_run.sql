-- Makes a running run pending again, with the event that says why; p_cause names what went wrong, or is null when its
-- worker just gave it back. A run that went wrong too often fails with the cause. Answers with the new status.
-- The time until the next attempt doubles with each failure, from p_backoff up to p_longest.
CREATE OR REPLACE FUNCTION {schema}.release_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_cause text, p_backoff interval, p_longest interval,
    p_event_id text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_again_at timestamptz;
BEGIN
    PERFORM FROM {schema}.threads WHERE id = p_thread_id FOR NO KEY UPDATE;
    PERFORM {schema}.check_fence(p_thread_id, p_run_id, p_attempt);
    SELECT failures, max_attempts INTO v_run
      FROM {schema}.runs WHERE thread_id = p_thread_id AND id = p_run_id FOR UPDATE;
    IF p_cause IS NOT NULL AND v_run.failures + 1 >= v_run.max_attempts THEN
        PERFORM {schema}.change_run(
            p_thread_id, p_run_id, 'failed', p_cause, p_event_id, 'run_failed',
            json_build_object('run_id', p_run_id, 'status', 'failed', 'error', p_cause,
                              'failures', v_run.failures + 1));
        RETURN 'failed';
    END IF;
    IF p_cause IS NOT NULL AND p_backoff > interval '0' THEN
        v_again_at := clock_timestamp() + least(p_backoff * 2 ^ least(v_run.failures, 20), p_longest);
    END IF;
    PERFORM {schema}.change_run(
        p_thread_id, p_run_id, 'pending', p_cause, p_event_id, 'run_released',
        json_build_object('run_id', p_run_id, 'status', 'pending', 'reason', coalesce(p_cause, 'its worker stops'),
                          'is_failure', p_cause IS NOT NULL, 'available_at', v_again_at));
    UPDATE {schema}.runs
       SET available_at = v_again_at, failures = failures + CASE WHEN p_cause IS NULL THEN 0 ELSE 1 END
     WHERE thread_id = p_thread_id AND id = p_run_id;
    RETURN 'pending';
END
$$;
