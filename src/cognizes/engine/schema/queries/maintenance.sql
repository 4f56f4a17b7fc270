-- prune_snapshots: Keeps the newest ones of every thread.
SELECT {schema}.prune_snapshots($1);

-- prune_chunks: Drops old chunks.
SELECT {schema}.prune_chunks($1);

-- prune_runs: Drops old finished runs.
SELECT {schema}.prune_runs($1);

-- prune_audit_log: Deletes a batch of old entries of the audit log.
SELECT {schema}.prune_audit_log($1, $2);

-- prune_streams: Deletes a batch of old rows of completed streams.
SELECT {schema}.prune_streams($1, $2);

-- fold_state_writes: Folds old writes to wider scopes into one per scope.
SELECT {schema}.fold_state_writes($1, $2);

-- release_expired_leases: Makes the runs of silent workers claimable.
SELECT {schema}.release_expired_leases();

-- resume_due_waits: Fires timers, hands messages over, ends waits that took too long.
SELECT {schema}.resume_due_waits();

-- limit_statements: The time limit of the statements that follow, in milliseconds: of this transaction, or of the session.
SELECT set_config('statement_timeout', $1, $2);

-- claim_job: True for one process when a job is due; the row lock decides between them.
WITH job AS (
    INSERT INTO {schema}.maintenance_jobs AS m (name, last_run_at) VALUES ($1, now())
    ON CONFLICT (name) DO UPDATE SET last_run_at = now() WHERE m.last_run_at <= now() - $2::interval
    RETURNING 1
)
SELECT EXISTS (SELECT FROM job);

-- has_cron: Whether pg_cron can schedule jobs in this very database. Who may not see how the server is set up cannot create
-- it either.
SELECT CASE WHEN NOT pg_has_role('pg_read_all_settings', 'USAGE')
            THEN EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron')
            ELSE EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_cron')
                 AND current_setting('shared_preload_libraries') LIKE '%pg_cron%'
                 AND coalesce(current_setting('cron.database_name', true), '') = current_database() END;

-- create_cron: Makes pg_cron's functions available.
CREATE EXTENSION IF NOT EXISTS pg_cron;

-- schedule_cron: Schedules a job, or changes the one of the same name.
SELECT cron.schedule($1, $2, $3);

-- ping: Does the server answer.
SELECT 1;

-- read_version: The server's version.
SELECT current_setting('server_version');
