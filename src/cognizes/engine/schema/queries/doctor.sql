-- read_clock: The server's time, now and not at the start of the transaction.
SELECT clock_timestamp();

-- send_notification: Rings a channel, to see whether the bell is heard.
SELECT pg_notify($1, $2);

-- explain_cron: Why pg_cron does or does not run our jobs.
SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_cron') AS is_available,
       current_setting('shared_preload_libraries') LIKE '%pg_cron%' AS is_loaded,
       coalesce(current_setting('cron.database_name', true), 'postgres') AS cron_database,
       current_database() AS this_database;
