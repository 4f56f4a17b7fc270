-- Ends runs that attempts hold, each with its event: `completed` with a result, `failed` with an error. One that cannot be
-- ended stops no other; item i is answered with place i:
--   ended    `run` is what it is now
--   fenced   the attempt does not hold the run any more; nothing changed; `run` is what it is
--   missing  there is no such run
--   busy     without p_wait only: somebody else holds it, or its thread, right now. A batch never waits for one of its
--            items: whoever waits while he holds others could be waiting in a circle
CREATE OR REPLACE FUNCTION {schema}.end_runs(
    p_thread_ids uuid[], p_run_ids text[], p_attempts integer[], p_statuses text[], p_results text[], p_errors text[],
    p_event_ids text[], p_event_types text[], p_contents text[], p_wait boolean
) RETURNS TABLE (place integer, outcome text, run {schema}.runs) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    i integer;
BEGIN
    FOR i IN SELECT n FROM generate_subscripts(p_run_ids, 1) AS n ORDER BY p_thread_ids[n], p_run_ids[n] LOOP
        place := i;
        IF p_wait THEN
            PERFORM FROM {schema}.threads WHERE id = p_thread_ids[i] FOR NO KEY UPDATE;
            PERFORM FROM {schema}.runs WHERE thread_id = p_thread_ids[i] AND id = p_run_ids[i] FOR UPDATE;
        END IF;
        PERFORM FROM {schema}.threads WHERE id = p_thread_ids[i] FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            SELECT r.* INTO run FROM {schema}.runs r
             WHERE r.thread_id = p_thread_ids[i] AND r.id = p_run_ids[i] FOR UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            outcome := CASE WHEN EXISTS (SELECT FROM {schema}.runs WHERE thread_id = p_thread_ids[i] AND id = p_run_ids[i])
                            THEN 'busy' ELSE 'missing' END;
            run := NULL;
        ELSIF run.status <> 'running' OR run.attempt <> p_attempts[i] THEN
            outcome := 'fenced';
        ELSE
            PERFORM {schema}.change_run(
                p_thread_ids[i], p_run_ids[i], p_statuses[i], p_errors[i], p_event_ids[i], p_event_types[i],
                p_contents[i]::json, p_results[i]::json);
            SELECT r.* INTO run FROM {schema}.runs r WHERE r.thread_id = p_thread_ids[i] AND r.id = p_run_ids[i];
            outcome := 'ended';
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
