-- Trigger: every committed event sends a notification, also one of an INSERT in psql. The payload has the ids of the row and
-- no content; long ids are cut, because a payload over 8000 bytes would fail the append. Readers read the row.
-- It does not fire for the append functions without p_notify: their caller sends the same payload after the commit.
CREATE OR REPLACE FUNCTION {schema}.notify_event_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('event_stream{channel_suffix}', json_build_object(
        'event_id', left(id, 200),
        'thread_id', thread_id,
        'sequence_num', sequence_num,
        'run_id', left(run_id, 200),
        'author', left(author, 200),
        'event_type', left(event_type, 200),
        'created_at', created_at
    )::text) FROM inserted;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER notify_event_insert
    AFTER INSERT ON {schema}.events
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (current_setting('cognizes.notify', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION {schema}.notify_event_insert();
