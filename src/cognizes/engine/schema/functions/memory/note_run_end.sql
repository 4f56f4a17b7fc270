-- Trigger: queue an ended run for its episode, in the transaction that ends it. A consolidation has no episode of its own.
CREATE OR REPLACE FUNCTION {schema}.note_run_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.agent_episodes_due (thread_id, run_id, app_name)
    VALUES (NEW.thread_id, NEW.id, NEW.app_name)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER note_run_end AFTER UPDATE OF status ON {schema}.runs
    FOR EACH ROW WHEN (NEW.status IN ('completed', 'failed') AND OLD.status IS DISTINCT FROM NEW.status
                       AND NEW.handler IS DISTINCT FROM 'cognizes.consolidate')
    EXECUTE FUNCTION {schema}.note_run_end();
