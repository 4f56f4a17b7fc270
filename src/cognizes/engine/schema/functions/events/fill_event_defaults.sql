-- Trigger: an INSERT in psql needs only a thread and a type. The sequence number is assigned here, under the row lock that
-- the engine's appends take.
-- A `state_update` that follows an UPDATE of the thread's version, records that change: its
-- content is the delta, so that time travel, history and subscribers see it.
CREATE OR REPLACE FUNCTION {schema}.fill_event_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_delta json := NEW.actions -> 'state_delta';
BEGIN
    UPDATE {schema}.threads
       SET last_sequence = last_sequence + 1
     WHERE id = NEW.thread_id
    RETURNING last_sequence, app_name, version INTO NEW.sequence_num, NEW.app_name, NEW.version;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    IF v_delta IS NULL AND NEW.event_type = 'state_update' AND json_typeof(NEW.content) = 'object' THEN
        v_delta := NEW.content;
    END IF;
    IF json_typeof(v_delta) = 'object' AND NEW.version > coalesce(
        (SELECT e.version FROM {schema}.events e
          WHERE e.thread_id = NEW.thread_id AND e.sequence_num = NEW.sequence_num - 1), 1)
    THEN
        NEW.changes_state := true;
        NEW.actions := NEW.actions::jsonb || jsonb_build_object('state_delta', v_delta);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_event_defaults
    BEFORE INSERT ON {schema}.events
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION {schema}.fill_event_defaults();
