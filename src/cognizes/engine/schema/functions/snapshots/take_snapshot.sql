-- Stores the present state of a session as a snapshot, once per version. Returns the version.
CREATE OR REPLACE FUNCTION {schema}.take_snapshot(p_thread_id uuid) RETURNS bigint LANGUAGE sql AS $$
    -- An unchanged initial state is stored as the snapshot of sequence 0, which is never pruned.
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
