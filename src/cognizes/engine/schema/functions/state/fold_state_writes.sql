-- Folds the writes to a user's or an app's state that are older than p_age into the newest of them, which then holds the whole
-- state as of that write (`is_folded`). Later states can still be read; earlier ones have expired, see `read_past`.
-- The state itself, snapshots and events do not change. Reads up to p_limit writes of a scope. Returns the number of deleted rows.
CREATE OR REPLACE FUNCTION {schema}.fold_state_writes(p_age interval, p_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_scope record;
    v_write record;
    v_state jsonb;
    v_last bigint;
    v_gone bigint := 0;
    v_count bigint;
BEGIN
    FOR v_scope IN
        SELECT app_name, scope, user_id FROM {schema}.state_writes
         WHERE created_at < now() - p_age
         GROUP BY app_name, scope, user_id HAVING count(*) > 1
         LIMIT 100
    LOOP
        v_state := '{}';
        v_last := NULL;
        -- In the order of versions, the order in which the writes were applied. The row locks keep a second call out.
        FOR v_write IN
            SELECT version, delta, created_at FROM {schema}.state_writes
             WHERE app_name = v_scope.app_name AND scope = v_scope.scope AND user_id = v_scope.user_id
             ORDER BY version LIMIT p_limit FOR UPDATE
        LOOP
            EXIT WHEN v_write.created_at >= now() - p_age;
            v_state := {schema}.merge_state(v_state, v_write.delta);
            v_last := v_write.version;
        END LOOP;
        DELETE FROM {schema}.state_writes
         WHERE app_name = v_scope.app_name AND scope = v_scope.scope AND user_id = v_scope.user_id AND version < v_last;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count > 0 THEN
            UPDATE {schema}.state_writes
               SET delta = v_state, is_folded = true, thread_id = NULL, sequence_num = NULL
             WHERE app_name = v_scope.app_name AND scope = v_scope.scope AND user_id = v_scope.user_id
               AND version = v_last;
        END IF;
        v_gone := v_gone + v_count;
        EXIT WHEN v_gone >= p_limit;
    END LOOP;
    RETURN v_gone;
END
$$;
