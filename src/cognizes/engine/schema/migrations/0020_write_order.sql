-- Defaults for rows typed into psql, and a counter that orders writes of different threads.

-- The rest of a minimal INSERT is filled in by the triggers of functions/12, 13, 16, 17 and 18.
ALTER TABLE {schema}.events ALTER COLUMN author SET DEFAULT 'system';
ALTER TABLE {schema}.threads ALTER COLUMN is_as_created SET DEFAULT true;

-- write_numbers: one counter for all threads. Time travel compares the number of an event with those of the writes to `user:`
-- and `app:` state; a clock may be set back, a sequence is not. Rows from before this migration have no number (NULL): they
-- precede every numbered row, and among themselves their timestamps decide. Adding the column rewrites no table.
CREATE SEQUENCE IF NOT EXISTS {schema}.write_numbers;
ALTER TABLE {schema}.threads ADD COLUMN IF NOT EXISTS began_number bigint;
ALTER TABLE {schema}.events ADD COLUMN IF NOT EXISTS write_number bigint;
ALTER TABLE {schema}.state_writes ADD COLUMN IF NOT EXISTS write_number bigint;
ALTER TABLE {schema}.branches ADD COLUMN IF NOT EXISTS write_number bigint;
ALTER TABLE {schema}.threads ALTER COLUMN began_number SET DEFAULT nextval('{schema}.write_numbers');
ALTER TABLE {schema}.events ALTER COLUMN write_number SET DEFAULT nextval('{schema}.write_numbers');
ALTER TABLE {schema}.state_writes ALTER COLUMN write_number SET DEFAULT nextval('{schema}.write_numbers');
ALTER TABLE {schema}.branches ALTER COLUMN write_number SET DEFAULT nextval('{schema}.write_numbers');

COMMENT ON COLUMN {schema}.threads.began_number IS 'The write number of its sequence number 0; a fork has that of its source.';
COMMENT ON COLUMN {schema}.events.write_number IS 'Orders writes of different threads; NULL: before numbers, or imported.';

-- Both got an argument, the write number.
DROP FUNCTION IF EXISTS {schema}.merge_user_state(text, text, jsonb, uuid, bigint, timestamptz, integer);
DROP FUNCTION IF EXISTS {schema}.merge_app_state(text, jsonb, uuid, bigint, timestamptz, integer);
