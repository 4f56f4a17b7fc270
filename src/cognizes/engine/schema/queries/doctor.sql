-- read_clock: The server's time, now and not at the start of the transaction.
SELECT clock_timestamp();

-- send_notification: Rings a channel, to see whether the bell is heard.
SELECT pg_notify($1, $2);

-- explain_cron: Why pg_cron does or does not run our jobs.
SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_cron') AS is_available,
       pg_has_role('pg_read_all_settings', 'USAGE') AS may_look,
       CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE')
            THEN current_setting('shared_preload_libraries') LIKE '%pg_cron%' END AS is_loaded,
       current_database() AS this_database;
