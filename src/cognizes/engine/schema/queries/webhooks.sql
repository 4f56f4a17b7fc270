-- create_webhook: Store a webhook and its secret.
WITH created AS (
    INSERT INTO {schema}.webhooks (id, app_name, url, events) VALUES ($1, $2, $3, $4) RETURNING *
), kept AS (
    INSERT INTO {schema}.webhook_secrets (webhook_id, secret) SELECT id, $5 FROM created
)
SELECT * FROM created;

-- replace_webhook_secret: Replace the secret of a webhook of an app (null: of all apps).
UPDATE {schema}.webhook_secrets s SET secret = $3
  FROM {schema}.webhooks w WHERE w.id = s.webhook_id AND w.id = $1 AND ($2::text IS NULL OR w.app_name = $2)
RETURNING w.id;

-- list_webhooks: Read the webhooks of an app (null: of all apps), with the number of waiting and of dead deliveries.
SELECT w.*,
       (SELECT count(*) FROM {schema}.webhook_deliveries d WHERE d.webhook_id = w.id AND d.dead_at IS NULL) AS waiting,
       (SELECT count(*) FROM {schema}.webhook_deliveries d WHERE d.webhook_id = w.id AND d.dead_at IS NOT NULL) AS dead
  FROM {schema}.webhooks w
 WHERE ($1::text IS NULL OR w.app_name = $1) ORDER BY w.created_at, w.id LIMIT 1000;

-- delete_webhook: Delete a webhook of an app (null: of all apps) with its secret and its deliveries.
DELETE FROM {schema}.webhooks WHERE id = $1 AND ($2::text IS NULL OR app_name = $2) RETURNING id;

-- claim_deliveries: Claim deliveries that are due, for the duration of a lease. Each claim counts as an attempt.
-- The apps of the oldest ones take turns: a receiver that answers slowly must not delay those of other apps.
WITH oldest AS MATERIALIZED (
    SELECT d.id, d.app_name, d.due_at FROM {schema}.webhook_deliveries d
     WHERE d.dead_at IS NULL AND d.due_at <= clock_timestamp() ORDER BY d.due_at LIMIT 1000
), placed AS MATERIALIZED (
    SELECT o.id, o.due_at, row_number() OVER (PARTITION BY o.app_name ORDER BY o.due_at) AS place FROM oldest o
), due AS MATERIALIZED (
    SELECT d.id FROM placed p JOIN {schema}.webhook_deliveries d ON d.id = p.id
     WHERE d.dead_at IS NULL AND d.due_at <= clock_timestamp()
     ORDER BY p.place, p.due_at LIMIT $1 FOR UPDATE OF d SKIP LOCKED
)
UPDATE {schema}.webhook_deliveries d SET attempts = d.attempts + 1, due_at = clock_timestamp() + $2
  FROM due, {schema}.webhooks w, {schema}.webhook_secrets s
 WHERE d.id = due.id AND w.id = d.webhook_id AND s.webhook_id = d.webhook_id
RETURNING d.id, d.webhook_id, d.attempts, d.payload::text AS payload, w.url, s.secret;

-- end_delivery: Delete a delivery that was answered, unless another attempt has begun.
DELETE FROM {schema}.webhook_deliveries WHERE id = $1 AND attempts = $2;

-- retry_delivery: Make a delivery due after a while, or give it up ($4), unless another attempt has begun.
UPDATE {schema}.webhook_deliveries
   SET last_error = $3, dead_at = CASE WHEN $4 THEN clock_timestamp() END, due_at = clock_timestamp() + $5
 WHERE id = $1 AND attempts = $2;

-- list_dead_letters: Read the deliveries of an app (null: of all apps) that were given up, newest first.
SELECT d.id, d.webhook_id, d.app_name, d.thread_id, d.run_id, d.event, d.payload::text AS payload, d.attempts, d.last_error,
       d.created_at, d.dead_at
  FROM {schema}.webhook_deliveries d
 WHERE d.dead_at IS NOT NULL AND ($1::text IS NULL OR d.app_name = $1)
   AND ($2::timestamptz IS NULL OR (d.dead_at, d.id) < ($2, $3::uuid))
 ORDER BY d.dead_at DESC, d.id DESC LIMIT $4;

-- redeliver: Make a delivery of an app (null: of all apps) that was given up due now, with all its attempts.
UPDATE {schema}.webhook_deliveries SET attempts = 0, dead_at = NULL, due_at = clock_timestamp()
 WHERE id = $1 AND ($2::text IS NULL OR app_name = $2) AND dead_at IS NOT NULL RETURNING id;
