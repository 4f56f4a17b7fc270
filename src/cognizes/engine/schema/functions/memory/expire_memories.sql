-- Delete memories whose `expires_at` has passed, and those of a kind that are older than the days of the rules
-- ({"turn": 90}), at most p_limit of at most 100 users. A fact or episode is deleted with its memory; a message is recorded as
-- forgotten, so that storing its session again does not restore it. The duplicates of a deleted memory stay until they are due
-- themselves. Returns the number of deleted memories.
CREATE OR REPLACE FUNCTION {schema}.expire_memories(p_rules text, p_limit integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint := 0;
    v_user record;
BEGIN
    -- In the order in which forget_threads takes the locks of users.
    FOR v_user IN
        SELECT due.app_name, due.user_id, array_agg(due.id) AS ids FROM (
            SELECT d.*, dense_rank() OVER (ORDER BY d.app_name, d.user_id) AS number FROM (
                (SELECT m.app_name, m.user_id, m.id FROM {schema}.memories m WHERE m.expires_at <= now() LIMIT p_limit)
                UNION
                SELECT old.* FROM json_each_text(p_rules::json) AS rule (kind, days),
                       LATERAL (SELECT m.app_name, m.user_id, m.id FROM {schema}.memories m
                                 WHERE m.kind = rule.kind
                                   AND m.created_at < now() - rule.days::double precision * interval '1 day'
                                 LIMIT p_limit) old
            ) d
             ORDER BY number LIMIT p_limit
        ) due WHERE number <= 100
        GROUP BY app_name, user_id
        ORDER BY hashtextextended('memory ' || app_name || chr(1) || user_id, 0)
    LOOP
        v_count := v_count + cardinality({schema}.delete_memories(v_user.app_name, v_user.user_id, v_user.ids));
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
