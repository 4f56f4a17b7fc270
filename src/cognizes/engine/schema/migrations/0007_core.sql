-- The state that a session was created with is a snapshot only once the session's state is another one: a session that
-- is created costs one row. `is_as_created` is true while the state itself tells what it was created with.
ALTER TABLE {schema}.threads ADD COLUMN IF NOT EXISTS is_as_created boolean NOT NULL DEFAULT false;
