-- read_log_position: Read the position of the primary in its write-ahead log. A server that is no primary has none.
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text;

-- read_replica_position: Return whether a replica has replayed the log up to a position, and the head of a thread on it.
SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= $2::text::pg_lsn AS is_current,
       (SELECT last_sequence FROM {schema}.threads WHERE id = $1::uuid) AS last_sequence;

-- read_replica_lag: Return by how many seconds a replica is behind; 0 if it has replayed all that it received.
SELECT CASE WHEN pg_last_wal_receive_lsn() IS NOT DISTINCT FROM pg_last_wal_replay_lsn() THEN 0
            ELSE coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0) END::float8;
