-- Trigger: an INSERT in psql needs only a thread, a role and a text. It is the text of an event: of the event that `event_id`
-- names, or else of a new one, which is appended here in the thread's order and notifies subscribers.
CREATE OR REPLACE FUNCTION {schema}.fill_message_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.event_id IS NULL THEN
        NEW.event_id := gen_random_uuid()::text;
        INSERT INTO {schema}.events (thread_id, id, author, event_type, content)
        VALUES (NEW.thread_id, NEW.event_id, NEW.role,
                CASE NEW.role WHEN 'tool' THEN 'message' ELSE NEW.role || '_message' END,
                json_build_object('role', NEW.role, 'text', NEW.content))
        RETURNING sequence_num, app_name, created_at INTO NEW.sequence_num, NEW.app_name, NEW.created_at;
    ELSE
        SELECT e.sequence_num, e.app_name, e.created_at INTO NEW.sequence_num, NEW.app_name, NEW.created_at
          FROM {schema}.events e WHERE e.thread_id = NEW.thread_id AND md5(e.id) = md5(NEW.event_id);
        IF NOT FOUND THEN
            RAISE foreign_key_violation USING
                MESSAGE = format('there is no event %s in thread %s', NEW.event_id, NEW.thread_id);
        END IF;
    END IF;
    NEW.id := coalesce(NEW.id, NEW.event_id);
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_message_defaults
    BEFORE INSERT ON {schema}.messages
    FOR EACH ROW WHEN (NEW.sequence_num IS NULL)
    EXECUTE FUNCTION {schema}.fill_message_defaults();
