-- The tables and triggers of seed 001 that an append touches, word for word, in a schema of their own.
CREATE SCHEMA IF NOT EXISTS seed001;
SET search_path = seed001;

CREATE TABLE IF NOT EXISTS threads (
    id              UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    app_name        VARCHAR(255) NOT NULL,
    user_id         VARCHAR(255) NOT NULL,
    state           JSONB NOT NULL DEFAULT '{}',
    version         INTEGER NOT NULL DEFAULT 1,
    metadata        JSONB DEFAULT '{}',
    created_at      TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
    updated_at      TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
    CONSTRAINT threads_app_user_unique UNIQUE (app_name, user_id, id)
);

CREATE INDEX IF NOT EXISTS idx_threads_app_user ON threads(app_name, user_id);
CREATE INDEX IF NOT EXISTS idx_threads_updated_at ON threads(updated_at DESC);

CREATE TABLE IF NOT EXISTS events (
    id              UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    thread_id       UUID NOT NULL REFERENCES threads(id) ON DELETE CASCADE,
    invocation_id   UUID NOT NULL,
    author          VARCHAR(50) NOT NULL,
    event_type      VARCHAR(50) NOT NULL,
    content         JSONB NOT NULL DEFAULT '{}',
    actions         JSONB DEFAULT '{}',
    created_at      TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
    sequence_num    BIGSERIAL
);

CREATE INDEX IF NOT EXISTS idx_events_thread_id ON events(thread_id);
CREATE INDEX IF NOT EXISTS idx_events_invocation_id ON events(invocation_id);
CREATE INDEX IF NOT EXISTS idx_events_sequence ON events(thread_id, sequence_num);

CREATE OR REPLACE FUNCTION notify_event_insert()
RETURNS TRIGGER AS $$
BEGIN
    PERFORM pg_notify(
        'event_stream',
        json_build_object(
            'event_id', NEW.id,
            'thread_id', NEW.thread_id,
            'author', NEW.author,
            'event_type', NEW.event_type,
            'created_at', NEW.created_at
        )::text
    );
    RETURN NEW;
END;
$$ LANGUAGE plpgsql;

CREATE TRIGGER trigger_event_notify
    AFTER INSERT ON events
    FOR EACH ROW
    EXECUTE FUNCTION notify_event_insert();

CREATE OR REPLACE FUNCTION update_updated_at()
RETURNS TRIGGER AS $$
BEGIN
    NEW.updated_at = NOW();
    RETURN NEW;
END;
$$ LANGUAGE plpgsql;

CREATE TRIGGER trigger_threads_updated_at
    BEFORE UPDATE ON threads
    FOR EACH ROW
    EXECUTE FUNCTION update_updated_at();

RESET search_path;
