-- Events are append-only. Deleting a thread deletes its events: that DELETE comes from the trigger of the foreign key, so it
-- is one level deeper than a DELETE that a client sends. The triggers fire once for a statement and not for an INSERT, so an
-- append does not pay for them.
CREATE OR REPLACE FUNCTION {schema}.refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND pg_trigger_depth() > 1 THEN
        RETURN NULL;
    END IF;
    RAISE restrict_violation USING
        MESSAGE = format('events are append-only: %s is refused', TG_OP),
        HINT = 'Append another event. Deleting a thread (DELETE FROM threads WHERE id = ...) deletes its events.';
END
$$;

CREATE OR REPLACE TRIGGER refuse_event_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.events
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_event_change();
