-- An event typed by hand needs only a thread, an author and a type: it takes its place in the thread's order here,
-- under the same row lock that the engine's own appends take.
CREATE OR REPLACE FUNCTION {schema}.fill_event_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.threads
       SET last_sequence = last_sequence + 1
     WHERE id = NEW.thread_id
    RETURNING last_sequence, app_name, version INTO NEW.sequence_num, NEW.app_name, NEW.version;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_event_defaults
    BEFORE INSERT ON {schema}.events
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION {schema}.fill_event_defaults();
