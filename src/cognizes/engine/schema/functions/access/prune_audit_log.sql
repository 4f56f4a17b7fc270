-- Deletes up to p_limit entries of the audit log that are older than an age. Returns the number of deleted rows.
CREATE OR REPLACE FUNCTION {schema}.prune_audit_log(p_age interval, p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH old AS (
        SELECT app_name, created_at, id FROM {schema}.audit_log
         WHERE created_at < now() - p_age LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {schema}.audit_log a USING old
         WHERE a.app_name = old.app_name AND a.created_at = old.created_at AND a.id = old.id
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
