-- Delete memories whose `expires_at` has passed, and those of a kind that are older than the days of the rules
-- ({"turn": 90}), at most p_limit of at most 100 users. A fact or episode is deleted with its memory; a message is recorded as
-- forgotten, so that storing its session again does not restore it. Returns the number of deleted memories.
CREATE OR REPLACE FUNCTION {schema}.expire_memories(p_rules text, p_limit integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint := 0;
    v_found boolean;
    v_memory record;
BEGIN
    FOR v_memory IN
        SELECT due.* FROM (
            SELECT d.*, dense_rank() OVER (ORDER BY d.app_name, d.user_id) AS number FROM (
                (SELECT m.app_name, m.user_id, m.id FROM {schema}.memories m WHERE m.expires_at <= now() LIMIT p_limit)
                UNION
                SELECT old.* FROM json_each_text(p_rules::json) AS rule (kind, days),
                       LATERAL (SELECT m.app_name, m.user_id, m.id FROM {schema}.memories m
                                 WHERE m.kind = rule.kind
                                   AND m.created_at < now() - rule.days::double precision * interval '1 day'
                                 LIMIT p_limit) old
            ) d
        ) due WHERE number <= 100 ORDER BY app_name, user_id, id LIMIT p_limit
    LOOP
        v_found := {schema}.forget_memory(v_memory.app_name, v_memory.user_id, v_memory.id);
        v_count := v_count + v_found::integer;
    END LOOP;
    RETURN v_count;
END
$$;

-- Delete values of facts that were replaced before the given time. Returns the number of deleted values.
CREATE OR REPLACE FUNCTION {schema}.prune_fact_history(p_kept interval, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.agent_long_term_history
         WHERE ctid = ANY (ARRAY(SELECT h.ctid FROM {schema}.agent_long_term_history h
                                  WHERE h.valid_until < now() - p_kept LIMIT p_limit))
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
