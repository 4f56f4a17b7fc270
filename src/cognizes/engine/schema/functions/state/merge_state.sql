-- Returns a state without the keys that a delta deletes.
CREATE OR REPLACE FUNCTION {schema}.delete_keys(p_state jsonb, p_delta jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state - ARRAY(SELECT key FROM jsonb_each(p_delta) WHERE value = '{"$delete": true}'::jsonb)
$$;

-- Returns a state after a delta: keys are replaced, never merged deeply; the value {"$delete": true} deletes a key.
-- PostgreSQL inlines this function, because it contains no subquery; a call would copy a large state once more.
CREATE OR REPLACE FUNCTION {schema}.merge_state(p_state jsonb, p_delta jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN position('"$delete"' IN p_delta::text) = 0 THEN p_state || p_delta
                ELSE {schema}.delete_keys(p_state || p_delta, p_delta) END
$$;
