-- Fill a run that an INSERT in psql creates: it needs only a thread. The trigger appends the event as `create_run` does.
-- A run that is inserted without `lease_expires_at` never expires. The engine sets `app_name`, so the trigger does not fire
-- for its own runs.
CREATE OR REPLACE FUNCTION {schema}.fill_run_defaults() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The thread is locked before the run, as everywhere.
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
