-- What the monitor asks of runs: those of a thread, newest first.
CREATE INDEX IF NOT EXISTS idx_runs_thread ON {schema}.runs (thread_id, created_at);
