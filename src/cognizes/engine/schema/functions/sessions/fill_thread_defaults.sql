-- Trigger: the default of the session id is the id of the thread.
CREATE OR REPLACE FUNCTION {schema}.fill_thread_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.session_id := NEW.id::text;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_thread_defaults
    BEFORE INSERT ON {schema}.threads
    FOR EACH ROW WHEN (NEW.session_id IS NULL)
    EXECUTE FUNCTION {schema}.fill_thread_defaults();
