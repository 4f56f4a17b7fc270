-- Trigger: an INSERT in psql needs only a thread. Without a version the snapshot has the thread's present version and state.
-- The sequence number is that of the last event at its version.
CREATE OR REPLACE FUNCTION {schema}.fill_snapshot_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_thread record;
BEGIN
    SELECT app_name, version, last_sequence, state INTO v_thread
      FROM {schema}.threads WHERE id = NEW.thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    NEW.app_name := v_thread.app_name;
    NEW.version := coalesce(NEW.version, v_thread.version);
    IF NEW.version > v_thread.version THEN
        RAISE check_violation USING
            MESSAGE = format('version %s does not exist; the thread is at %s', NEW.version, v_thread.version);
    END IF;
    IF NEW.version = v_thread.version THEN
        NEW.sequence_num := v_thread.last_sequence;
        NEW.state := coalesce(NEW.state, v_thread.state);
    ELSE
        NEW.sequence_num := coalesce((SELECT max(e.sequence_num) FROM {schema}.events e
                                       WHERE e.thread_id = NEW.thread_id AND e.version <= NEW.version), 0);
    END IF;
    IF NEW.events_summary = '{}' THEN
        NEW.events_summary := jsonb_build_object('events', NEW.sequence_num);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_snapshot_defaults
    BEFORE INSERT ON {schema}.snapshots
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION {schema}.fill_snapshot_defaults();
