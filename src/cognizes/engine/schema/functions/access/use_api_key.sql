-- Returns the key with this id and secret if it is valid. Writes the time of its use at most once a minute: requests that
-- all update one row would wait for each other.
CREATE OR REPLACE FUNCTION {schema}.use_api_key(p_id text, p_secret_hash bytea)
RETURNS SETOF {schema}.api_keys LANGUAGE plpgsql AS $$
DECLARE
    v_key {schema}.api_keys;
BEGIN
    SELECT * INTO v_key FROM {schema}.api_keys k
     WHERE k.id = p_id AND k.secret_hash = p_secret_hash AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_key.last_used_at IS NULL OR v_key.last_used_at < clock_timestamp() - interval '1 minute' THEN
        UPDATE {schema}.api_keys k SET last_used_at = clock_timestamp()
         WHERE k.id = p_id AND k.ctid = (SELECT ctid FROM {schema}.api_keys WHERE id = p_id FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN NEXT v_key;
END
$$;
