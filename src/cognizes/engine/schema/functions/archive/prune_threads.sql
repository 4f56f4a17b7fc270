-- Delete up to p_limit threads that were not changed for the days that p_rules gives for their app; the rule of `*` holds
-- for apps without one. A thread with a run that is not ended, or with a schedule that is not paused,
-- stays. Returns the number of deleted threads.
CREATE OR REPLACE FUNCTION {schema}.prune_threads(p_rules text, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH rules AS MATERIALIZED (
        SELECT key AS app_name, make_interval(secs => value::double precision * 86400) AS age
          FROM jsonb_each_text(p_rules::jsonb)
    ), idle AS (
        SELECT t.id
          FROM {schema}.threads t
         WHERE t.updated_at < now() - coalesce((SELECT age FROM rules WHERE app_name = t.app_name),
                                               (SELECT age FROM rules WHERE app_name = '*'))
           AND NOT EXISTS (SELECT FROM {schema}.runs r
                            WHERE r.thread_id = t.id AND r.status NOT IN ('completed', 'failed', 'cancelled'))
           AND NOT EXISTS (SELECT FROM {schema}.schedules s WHERE s.thread_id = t.id AND s.paused_at IS NULL)
         ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {schema}.threads t USING idle WHERE t.id = idle.id RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
