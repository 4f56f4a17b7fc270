-- Make a running run pending again, with its event. p_cause says what went wrong; null: its worker stops, or PostgreSQL was
-- unavailable if there is a p_backoff, and the attempt does not count as a failure. A run that went wrong too often fails
-- with the cause, and so does one without a handler, which no worker could claim. Return the new status. The time until
-- the next attempt doubles with each failure, from p_backoff up to p_longest.
CREATE OR REPLACE FUNCTION {schema}.release_run(
    p_thread_id uuid, p_run_id text, p_attempt integer, p_cause text, p_backoff interval, p_longest interval,
    p_event_id text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
    v_again_at timestamptz;
BEGIN
    SELECT * INTO v_run FROM {schema}.lock_run(p_thread_id, p_run_id, p_attempt, 'pending');
    IF p_cause IS NOT NULL AND (v_run.handler IS NULL OR v_run.failures + 1 >= v_run.max_attempts) THEN
        PERFORM {schema}.end_runs(
            ARRAY[p_thread_id], ARRAY[p_run_id], ARRAY[p_attempt], ARRAY['failed'], NULL, ARRAY[p_cause],
            ARRAY[p_event_id],
            ARRAY[json_build_object('run_id', p_run_id, 'status', 'failed', 'error', p_cause,
                                    'failures', v_run.failures + 1)::text],
            true);
        RETURN 'failed';
    END IF;
    IF p_backoff > interval '0' THEN
        v_again_at := clock_timestamp() + least(p_backoff * 2 ^ least(v_run.failures, 20), p_longest);
    END IF;
    UPDATE {schema}.runs
       SET status = 'pending', error = coalesce(p_cause, error), available_at = v_again_at, lease_expires_at = NULL,
           failures = failures + CASE WHEN p_cause IS NULL THEN 0 ELSE 1 END
     WHERE thread_id = p_thread_id AND id = p_run_id;
    PERFORM {schema}.append_run_event(
        p_thread_id, p_run_id, p_event_id, 'run_released',
        json_build_object('run_id', p_run_id, 'status', 'pending', 'reason', coalesce(p_cause, CASE WHEN p_backoff > interval '0' THEN 'PostgreSQL was unavailable'
                                                                           ELSE 'its worker stops' END),
                          'is_failure', p_cause IS NOT NULL, 'available_at', v_again_at));
    RETURN 'pending';
END
$$;
