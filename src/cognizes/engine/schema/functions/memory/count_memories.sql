-- Trigger: update the counts in `memory_scopes` after any change of memories.
CREATE OR REPLACE FUNCTION {schema}.count_memories() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        INSERT INTO {schema}.memory_scopes AS s (app_name, user_id, memories, total_length)
        SELECT app_name, user_id, count(*), sum(length) FROM added GROUP BY app_name, user_id ORDER BY app_name, user_id
        ON CONFLICT (app_name, user_id) DO UPDATE
           SET memories = s.memories + excluded.memories, total_length = s.total_length + excluded.total_length;
    END IF;
    IF TG_OP IN ('DELETE', 'UPDATE') THEN
        UPDATE {schema}.memory_scopes s
           SET memories = s.memories - gone.memories, total_length = s.total_length - gone.total_length
          FROM (SELECT app_name, user_id, count(*) AS memories, sum(length) AS total_length
                  FROM removed GROUP BY app_name, user_id) gone
         WHERE s.app_name = gone.app_name AND s.user_id = gone.user_id;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER count_added_memories AFTER INSERT ON {schema}.memories
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_memories();
CREATE OR REPLACE TRIGGER count_changed_memories AFTER UPDATE ON {schema}.memories
    REFERENCING NEW TABLE AS added OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_memories();
CREATE OR REPLACE TRIGGER count_removed_memories AFTER DELETE ON {schema}.memories
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_memories();
