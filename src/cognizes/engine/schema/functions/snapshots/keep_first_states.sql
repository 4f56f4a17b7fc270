-- Keeps what sessions were created with, before their state changes for the first time. Whoever calls it changes the
-- state in the same transaction and takes `is_as_created` back.
CREATE OR REPLACE FUNCTION {schema}.keep_first_states(p_thread_ids uuid[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.snapshots (thread_id, version, sequence_num, app_name, state, events_summary)
    SELECT id, 1, 0, app_name, state, '{"events": 0}'
      FROM {schema}.threads
     WHERE id = ANY (p_thread_ids) AND is_as_created
    ON CONFLICT (thread_id, version) DO NOTHING
$$;

-- The same for a statement typed by hand; ours set `updated_at` themselves and do not pay for the call.
CREATE OR REPLACE FUNCTION {schema}.keep_first_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.keep_first_states(ARRAY[OLD.id]);
    NEW.is_as_created := false;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER keep_first_state
    BEFORE UPDATE ON {schema}.threads
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at AND OLD.is_as_created AND NEW.state <> OLD.state)
    EXECUTE FUNCTION {schema}.keep_first_state();
