-- Events that a conversation has removed, and the exact messages of frameworks that keep conversations as trees.

-- hidden_events: ranges of events that a branch does not contain any more, because its conversation was shortened. The
-- log keeps the events. A branch that was forked before keeps its own view: `write_number` orders the two.
CREATE TABLE IF NOT EXISTS {schema}.hidden_events (
    thread_id       uuid NOT NULL REFERENCES {schema}.threads (id) ON DELETE CASCADE,
    branch          integer NOT NULL,
    write_number    bigint NOT NULL DEFAULT nextval('{schema}.write_numbers'),
    app_name        text NOT NULL,
    first_sequence  bigint NOT NULL,
    last_sequence   bigint NOT NULL,
    PRIMARY KEY (thread_id, branch, write_number)
);
