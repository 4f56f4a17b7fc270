-- A run typed into psql needs only a thread. The event that announces it is appended here, as `create_run` does, so it has a
-- place in the thread's order and subscribers are notified. The engine always sets `app_name` and does not pay for the call.
CREATE OR REPLACE FUNCTION {schema}.fill_run_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The thread before the run, here and everywhere: one order of locks.
    SELECT app_name INTO NEW.app_name FROM {schema}.threads WHERE id = NEW.thread_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no thread %s', NEW.thread_id);
    END IF;
    IF NEW.status <> 'pending' THEN
        NEW.started_at := coalesce(NEW.started_at, clock_timestamp());
    END IF;
    IF NEW.status IN ('completed', 'failed', 'cancelled') THEN
        NEW.completed_at := coalesce(NEW.completed_at, clock_timestamp());
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.runs WHERE thread_id = NEW.thread_id AND id = NEW.id) THEN
        PERFORM {schema}.append_run_event(
            NEW.thread_id, NEW.id, gen_random_uuid()::text,
            CASE NEW.status WHEN 'pending' THEN 'run_created' WHEN 'running' THEN 'run_started'
                            WHEN 'completed' THEN 'run_finished' ELSE 'run_' || NEW.status END,
            json_build_object('run_id', NEW.id));
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER fill_run_defaults
    BEFORE INSERT ON {schema}.runs
    FOR EACH ROW WHEN (NEW.app_name IS NULL)
    EXECUTE FUNCTION {schema}.fill_run_defaults();
