-- read_clock: Return the current time of the server, not that of the start of the transaction.
SELECT clock_timestamp();

-- send_notification: Send a notification on a channel.
SELECT pg_notify($1, $2);

-- explain_cron: Return why pg_cron can or cannot run maintenance jobs.
SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_cron') AS is_available,
       pg_has_role('pg_read_all_settings', 'USAGE') AS may_look,
       CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE')
            THEN current_setting('shared_preload_libraries') LIKE '%pg_cron%' END AS is_loaded,
       current_database() AS this_database;

-- read_connection_limit: Return how many connections the server accepts from users without special rights.
SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
       - current_setting('reserved_connections')::integer;
