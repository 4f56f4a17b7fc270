-- Who may come in, and what those did who may do everything.

-- api_keys: the secret itself is nowhere. A plain SHA-256 is right for it: a secret of 256 random bits cannot be guessed,
-- so a slow hash, which protects what people choose, would only slow every request down. No tenant reads this table:
-- a key may be for several apps, or, when `app_names` is null, for all of them.
CREATE TABLE IF NOT EXISTS {schema}.api_keys (
    id            text PRIMARY KEY,
    secret_hash   bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    name          text NOT NULL DEFAULT '',
    app_names     text[] CHECK (cardinality(app_names) > 0),
    user_id       text,
    permissions   text[] NOT NULL CHECK (permissions <@ ARRAY['read', 'write', 'admin'] AND cardinality(permissions) > 0),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz,
    revoked_at    timestamptz,
    last_used_at  timestamptz
);

-- access_tickets: each opens one stream, once, within seconds. A crash of the server may lose them: ask for another.
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.access_tickets (
    secret_hash           bytea PRIMARY KEY,
    name                  text NOT NULL,
    key_id                text,
    app_names             text[],
    user_id               text,
    permissions           text[] NOT NULL,
    principal_expires_at  timestamptz,
    expires_at            timestamptz NOT NULL
);

CREATE INDEX IF NOT EXISTS idx_access_tickets_expires_at ON {schema}.access_tickets (expires_at);

-- audit_log: administrative and debugging writes. `app_name` is '*' where all apps are meant.
CREATE TABLE IF NOT EXISTS {schema}.audit_log (
    app_name    text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    id          uuid NOT NULL DEFAULT gen_random_uuid(),
    actor       text NOT NULL,
    action      text NOT NULL,
    target      text NOT NULL DEFAULT '',
    status      integer,
    request_id  text NOT NULL DEFAULT '',
    PRIMARY KEY (app_name, created_at, id)
);
