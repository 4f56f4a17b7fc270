-- Tells every process that a key is no longer what it remembers. The id is all it says.
CREATE OR REPLACE FUNCTION {schema}.notify_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changed', OLD.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER notify_key_change
AFTER DELETE OR UPDATE OF secret_hash, app_names, user_id, permissions, expires_at, revoked_at ON {schema}.api_keys
FOR EACH ROW EXECUTE FUNCTION {schema}.notify_key_change();
