-- Applies a delta to an app's state and records it. The caller holds the thread's lock; this takes the app's.
CREATE OR REPLACE FUNCTION {schema}.merge_app_state(
    p_app_name text, p_delta jsonb, p_thread_id uuid, p_sequence bigint, p_max_bytes integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_version bigint;
    v_size integer;
BEGIN
    INSERT INTO {schema}.app_states AS s (app_name, state, version)
    VALUES (p_app_name, {schema}.merge_state('{}', p_delta), 1)
    ON CONFLICT (app_name) DO UPDATE
        SET state = {schema}.merge_state(s.state, p_delta), version = s.version + 1, updated_at = clock_timestamp()
    RETURNING s.version, pg_column_size(s.state) INTO v_version, v_size;
    PERFORM {schema}.refuse_large_state('app', v_size, p_max_bytes);
    INSERT INTO {schema}.state_writes (app_name, scope, user_id, version, delta, thread_id, sequence_num, created_at)
    VALUES (p_app_name, 'app', '', v_version, p_delta, p_thread_id, p_sequence, clock_timestamp());
END
$$;
