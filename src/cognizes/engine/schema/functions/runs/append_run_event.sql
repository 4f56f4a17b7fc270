-- Append an event of the engine about a run.
CREATE OR REPLACE FUNCTION {schema}.append_run_event(
    p_thread_id uuid, p_run_id text, p_event_id text, p_event_type text, p_content json
) RETURNS void LANGUAGE sql AS $$
    SELECT {schema}.append_event(
        p_thread_id, p_event_id, p_run_id, '', 'system', p_event_type, p_content, '{}')
$$;
