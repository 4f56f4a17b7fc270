-- Notifies every process of the id of a changed key, so that it drops the key from its cache.
CREATE OR REPLACE FUNCTION {schema}.notify_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changed{channel_suffix}', OLD.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER notify_key_change
AFTER DELETE OR UPDATE OF secret_hash, app_names, user_id, permissions, expires_at, revoked_at ON {schema}.api_keys
FOR EACH ROW EXECUTE FUNCTION {schema}.notify_key_change();
