-- Stores the state that sessions were created with as the snapshot of sequence 0, before their state changes for the first time.
-- The caller changes the state in the same transaction and sets `is_as_created`, which means "initial state unchanged", to false.
CREATE OR REPLACE FUNCTION {schema}.snapshot_initial_states(p_thread_ids uuid[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, 1, 0, app_name, state, '{"events": 0}'
      FROM {schema}.threads
     WHERE id = ANY (p_thread_ids) AND is_as_created
    ON CONFLICT (thread_id, version) DO NOTHING
$$;

-- Trigger: the same for an UPDATE in psql. Statements of the engine set `updated_at` and do not fire it.
CREATE OR REPLACE FUNCTION {schema}.snapshot_initial_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.snapshot_initial_states(ARRAY[OLD.id]);
    NEW.is_as_created := false;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER snapshot_initial_state
    BEFORE UPDATE ON {schema}.threads
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at AND OLD.is_as_created AND NEW.state <> OLD.state)
    EXECUTE FUNCTION {schema}.snapshot_initial_state();
