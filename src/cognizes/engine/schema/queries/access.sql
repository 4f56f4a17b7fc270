-- create_api_key: Create a key; the caller has hashed its secret.
INSERT INTO {schema}.api_keys (id, secret_hash, name, app_names, user_id, permissions, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING *;

-- use_api_key: Read the valid key of an id and a secret.
SELECT * FROM {schema}.use_api_key($1, $2);

-- read_api_key: Read a key, valid or not.
SELECT * FROM {schema}.api_keys WHERE id = $1;

-- list_api_keys: Read all keys, newest first.
SELECT * FROM {schema}.api_keys ORDER BY created_at DESC, id;

-- revoke_api_key: Revoke a key.
UPDATE {schema}.api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = $1 RETURNING id;

-- expire_api_key: Limit the validity of a key.
UPDATE {schema}.api_keys SET expires_at = least(expires_at, $2) WHERE id = $1 RETURNING id;

-- create_ticket: Create a ticket and delete expired ones.
WITH gone AS (
    DELETE FROM {schema}.access_tickets WHERE expires_at < clock_timestamp()
)
INSERT INTO {schema}.access_tickets
       (secret_hash, name, key_id, app_names, user_id, permissions, principal_expires_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::interval);

-- redeem_ticket: Delete a ticket and return its caller. Its key may have been revoked or limited since it was created.
WITH redeemed AS (
    DELETE FROM {schema}.access_tickets WHERE secret_hash = $1 RETURNING *
)
SELECT t.name, t.key_id, t.app_names, t.user_id, t.permissions,
       least(t.principal_expires_at, k.expires_at) AS principal_expires_at,
       t.expires_at > clock_timestamp()
       AND (t.key_id IS NULL OR k.id IS NOT NULL AND k.revoked_at IS NULL)
       AND coalesce(least(t.principal_expires_at, k.expires_at) > clock_timestamp(), true) AS is_valid
  FROM redeemed t
  LEFT JOIN {schema}.api_keys k ON k.id = t.key_id;

-- write_audit: Append an entry to the audit log.
INSERT INTO {schema}.audit_log (app_name, actor, action, target, status, request_id) VALUES ($1, $2, $3, $4, $5, $6);

-- read_audit: Read the newest entries of the audit log, of one app or of all.
SELECT app_name, created_at, actor, action, target, status, request_id
  FROM {schema}.audit_log WHERE $1::text IS NULL OR app_name = $1 ORDER BY created_at DESC, id LIMIT $2;

-- read_thread_owner: Read app and user of a thread.
SELECT app_name, user_id FROM {schema}.threads WHERE id = $1;

-- find_thread_of_run: Find the newest thread with a run of this id, among those of some apps and of a user.
-- A thread whose events only name the run comes last: an end user writes such events.
SELECT t.id
  FROM {schema}.threads t
 WHERE t.id IN (SELECT thread_id FROM {schema}.runs WHERE id = $1
                UNION
                SELECT thread_id FROM {schema}.events WHERE run_id = $1)
   AND ($2::text[] IS NULL OR t.app_name = ANY ($2)) AND ($3::text IS NULL OR t.user_id = $3)
 ORDER BY EXISTS (SELECT FROM {schema}.runs r WHERE r.thread_id = t.id AND r.id = $1) DESC, t.id DESC
 LIMIT 1;

-- describe_role: Read the role of a connection, and whether row level security applies to it.
SELECT current_user::text AS name,
       r.rolsuper OR r.rolbypassrls AS bypasses,
       coalesce(pg_has_role(current_user, (SELECT oid FROM pg_roles WHERE rolname = 'cognizes_server'), 'USAGE'), false)
           AS is_server,
       (SELECT coalesce(bool_and(c.relrowsecurity
                                 AND (c.relforcerowsecurity OR NOT pg_has_role(current_user, c.relowner, 'USAGE'))
                                 AND EXISTS (SELECT FROM pg_policy p JOIN pg_roles s ON s.oid = ANY (p.polroles)
                                              WHERE p.polrelid = c.oid AND p.polname = 'tenant' AND NOT p.polpermissive
                                                AND s.rolname = 'cognizes_server')), false)
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'app_name' AND NOT a.attisdropped
         WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p')
           AND has_table_privilege(c.oid, 'SELECT')) AS is_protected
  FROM pg_roles r WHERE r.rolname = current_user;

-- let_server_role_log_in: Allow logins on the embedded server, whose private socket needs no password.
ALTER ROLE cognizes_server LOGIN;

-- enter_tenant: Set the apps whose rows the transaction may see.
SELECT {schema}.enter_tenant($1);

-- exchange_limits: Report the tokens and streams of callers in this process; return the shared levels.
SELECT place, level, streams FROM {schema}.exchange_limits($1, $2, $3, $4, $5, $6);
