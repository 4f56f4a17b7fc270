-- prune_snapshots: Delete snapshots except the newest of every thread.
SELECT {schema}.prune_snapshots($1);

-- prune_chunks: Delete old chunks.
SELECT {schema}.prune_chunks($1);

-- prune_runs: Delete old finished runs.
SELECT {schema}.prune_runs($1);

-- prune_dead_letters: Delete old calls of webhooks that were given up.
SELECT {schema}.prune_dead_letters($1);

-- prune_audit_log: Delete a batch of old entries of the audit log.
SELECT {schema}.prune_audit_log($1, $2);

-- prune_graph_items: Delete a batch of expired items of graphs' stores.
SELECT {schema}.prune_graph_items($1);

-- prune_streams: Delete a batch of old rows of completed streams.
SELECT {schema}.prune_streams($1, $2);

-- expire_memories: Delete a batch of memories that have expired.
SELECT {schema}.expire_memories($1, $2);

-- prune_fact_history: Delete a batch of old values of facts.
SELECT {schema}.prune_fact_history($1, $2);

-- fold_state_writes: Fold old writes to wider scopes into one per scope.
SELECT {schema}.fold_state_writes($1, $2);

-- release_expired_leases: Make runs with an expired lease claimable.
SELECT {schema}.release_expired_leases();

-- resume_due_waits: Resume runs whose timer or message is due, and end waits that timed out.
SELECT {schema}.resume_due_waits();

-- limit_statements: Set the time limit of the following statements, in milliseconds: in this transaction or the session.
SELECT set_config('statement_timeout', $1, $2);

-- claim_job: Claim a job that is due; the row lock lets one process claim it.
WITH job AS (
    INSERT INTO {schema}.maintenance_jobs AS m (name, last_run_at) VALUES ($1, now())
    ON CONFLICT (name) DO UPDATE SET last_run_at = now() WHERE m.last_run_at <= now() - $2::interval
    RETURNING 1
)
SELECT EXISTS (SELECT FROM job);

-- has_cron: Return whether pg_cron can schedule jobs in this database. A role that may not read the server's settings cannot
-- create it either.
SELECT CASE WHEN NOT pg_has_role('pg_read_all_settings', 'USAGE')
            THEN EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron')
            ELSE EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_cron')
                 AND current_setting('shared_preload_libraries') LIKE '%pg_cron%'
                 AND coalesce(current_setting('cron.database_name', true), '') = current_database() END;

-- create_cron: Create the extension pg_cron.
CREATE EXTENSION IF NOT EXISTS pg_cron;

-- schedule_cron: Schedule a job, or change the job of the same name.
SELECT cron.schedule($1, $2, $3);

-- ping: Return whether the server answers as the primary; false on a standby.
SELECT NOT pg_is_in_recovery();

-- read_version: Read the version of the server.
SELECT current_setting('server_version');
