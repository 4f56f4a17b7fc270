-- Trigger: sets `updated_at` for an UPDATE in psql. Statements of the engine set it and do not fire it.
CREATE OR REPLACE FUNCTION {schema}.update_updated_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER update_updated_at
    BEFORE UPDATE ON {schema}.threads
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at)
    EXECUTE FUNCTION {schema}.update_updated_at();

CREATE OR REPLACE TRIGGER update_updated_at
    BEFORE UPDATE ON {schema}.user_states
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at)
    EXECUTE FUNCTION {schema}.update_updated_at();

CREATE OR REPLACE TRIGGER update_updated_at
    BEFORE UPDATE ON {schema}.app_states
    FOR EACH ROW WHEN (NEW.updated_at = OLD.updated_at)
    EXECUTE FUNCTION {schema}.update_updated_at();
