-- Branches of a conversation without copying, and counts that do not grow with the conversation.

-- Whoever knows a thread only by its caller's session id finds it by this, where it is unique.
CREATE INDEX IF NOT EXISTS idx_threads_session ON {schema}.threads (md5(session_id));

-- branches: a name, where it comes from and the event it forked at. `main` is number 0 and has no row. A deleted branch
-- keeps its number, because the events that were said on it keep it too.
CREATE TABLE IF NOT EXISTS {schema}.branches (
    thread_id   uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    number      integer NOT NULL,
    app_name    text NOT NULL,
    name        text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    parent      integer NOT NULL,
    forked_at   bigint NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at  timestamptz,
    PRIMARY KEY (thread_id, number)
);

CREATE UNIQUE INDEX IF NOT EXISTS branches_name ON {schema}.branches (thread_id, name) WHERE deleted_at IS NULL;

-- branch_segments: from this event on, what is appended belongs to this branch. A thread without rows is all `main`, so
-- an append writes nothing here: only a switch does. The newest segment names the active branch.
CREATE TABLE IF NOT EXISTS {schema}.branch_segments (
    thread_id      uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    from_sequence  bigint NOT NULL,
    app_name       text NOT NULL,
    branch         integer NOT NULL,
    PRIMARY KEY (thread_id, from_sequence)
);

-- message_counts: how many messages a thread had up to an event. The past does not change, so a count stays true; readers
-- leave one behind after they had to count many.
CREATE TABLE IF NOT EXISTS {schema}.message_counts (
    thread_id     uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    sequence_num  bigint NOT NULL,
    app_name      text NOT NULL,
    messages      bigint NOT NULL,
    PRIMARY KEY (thread_id, sequence_num)
);
