-- create_schedule: Store a schedule. No row when its user has one of this name.
INSERT INTO {schema}.schedules (
    id, app_name, user_id, thread_id, name, handler, input, max_attempts, cron, every, timezone, catch_up, catch_up_limit,
    next_at, queue, priority)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12, $13, $14, $15, $16)
ON CONFLICT (app_name, user_id, name) DO NOTHING
RETURNING *, input::text AS input_text;

-- read_schedule: Read a schedule of an app (null: of all apps).
SELECT *, input::text AS input_text FROM {schema}.schedules WHERE id = $1 AND ($2::text IS NULL OR app_name = $2);

-- list_schedules: Read the schedules of an app and of a user (null: of all), in the order of their creation, after a cursor.
SELECT *, input::text AS input_text FROM {schema}.schedules
 WHERE ($1::text IS NULL OR app_name = $1) AND ($2::text IS NULL OR user_id = $2)
   AND ($3::timestamptz IS NULL OR (created_at, id) > ($3, $4::uuid))
 ORDER BY created_at, id LIMIT $5;

-- read_due_schedules: Read the schedules whose next time has come, with the time of the server.
SELECT *, input::text AS input_text, clock_timestamp() AS now FROM {schema}.schedules
 WHERE paused_at IS NULL AND next_at <= clock_timestamp()
 ORDER BY next_at LIMIT $1;

-- read_time: Read the time of the server.
SELECT clock_timestamp();

-- fire_schedule: Create the runs of a schedule that is due, unless another process has done so.
SELECT thread_id, run_id FROM {schema}.fire_schedule($1, $2, $3, $4, $5, $6);

-- pause_schedule: Pause a schedule of an app (null: of all apps); a paused one stays as it is.
UPDATE {schema}.schedules SET paused_at = coalesce(paused_at, clock_timestamp())
 WHERE id = $1 AND ($2::text IS NULL OR app_name = $2)
RETURNING *, input::text AS input_text;

-- resume_schedule: Continue a paused schedule of an app (null: of all apps) at a time; one that is not paused stays as it is.
UPDATE {schema}.schedules SET next_at = CASE WHEN paused_at IS NULL THEN next_at ELSE $3 END, paused_at = NULL
 WHERE id = $1 AND ($2::text IS NULL OR app_name = $2)
RETURNING *, input::text AS input_text;

-- delete_schedule: Delete a schedule of an app (null: of all apps). Its runs stay.
DELETE FROM {schema}.schedules WHERE id = $1 AND ($2::text IS NULL OR app_name = $2) RETURNING id;

-- list_firings: Read the newest firings of a schedule, with the status of their runs.
SELECT f.due_at, f.fired_at, f.thread_id, f.run_id, r.status
  FROM {schema}.schedule_firings f JOIN {schema}.runs r ON r.thread_id = f.thread_id AND r.id = f.run_id
 WHERE f.schedule_id = $1 ORDER BY f.due_at DESC LIMIT $2;

-- find_firing: Read the firing that created a run.
SELECT f.due_at, f.fired_at, f.thread_id, f.run_id, r.status
  FROM {schema}.schedule_firings f JOIN {schema}.runs r ON r.thread_id = f.thread_id AND r.id = f.run_id
 WHERE f.thread_id = $1 AND f.run_id = $2;
