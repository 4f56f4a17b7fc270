-- Keeps the session's own state as it is now; once per version. Returns the version.
CREATE OR REPLACE FUNCTION {schema}.take_snapshot(p_thread_id uuid) RETURNS bigint LANGUAGE sql AS $$
    -- A state that is still the one of sequence 0 is kept as that, so that it outlives the others.
    INSERT INTO {schema}.snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, 1, 0, app_name, state, '{"events": 0}'
      FROM {schema}.threads
     WHERE id = p_thread_id AND is_as_created
    ON CONFLICT (thread_id, version) DO NOTHING;
    INSERT INTO {schema}.snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, version, last_sequence, app_name, state, jsonb_build_object('events', last_sequence)
      FROM {schema}.threads
     WHERE id = p_thread_id
    ON CONFLICT (thread_id, version) DO NOTHING;
    SELECT version FROM {schema}.threads WHERE id = p_thread_id;
$$;
