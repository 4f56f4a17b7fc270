-- Returns a state after a delta: keys are replaced, never merged deeply; the value {"$delete": true} deletes a key.
CREATE OR REPLACE FUNCTION {schema}.merge_state(p_state jsonb, p_delta jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF position('"$delete"' IN p_delta::text) = 0 THEN
        RETURN p_state || p_delta;
    END IF;
    RETURN (p_state || p_delta) - ARRAY(
        SELECT key FROM jsonb_each(p_delta) WHERE value = '{"$delete": true}'::jsonb
    );
END
$$;
