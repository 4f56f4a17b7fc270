-- Applies a delta to an app's state and records it. The caller holds the lock that `lock_scopes` takes.
CREATE OR REPLACE FUNCTION {schema}.merge_app_state(
    p_app_name text, p_delta jsonb, p_thread_id uuid, p_sequence bigint, p_at timestamptz, p_max_bytes integer,
    p_write_number bigint DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_version bigint;
    v_size integer;
BEGIN
    UPDATE {schema}.app_states s
       SET state = {schema}.merge_state(s.state, p_delta), version = s.version + 1, updated_at = p_at
     WHERE s.app_name = p_app_name
    RETURNING s.version, pg_column_size(s.state) INTO v_version, v_size;
    PERFORM {schema}.refuse_large_state('app', v_size, p_max_bytes);
    INSERT INTO {schema}.state_writes (app_name, scope, user_id, version, delta, thread_id, sequence_num, created_at,
                                       write_number)
    VALUES (p_app_name, 'app', '', v_version, p_delta, p_thread_id, p_sequence, p_at,
            coalesce(p_write_number, nextval('{schema}.write_numbers')));
END
$$;
