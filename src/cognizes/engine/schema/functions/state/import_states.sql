-- Adds the missing keys of an app's state.
CREATE OR REPLACE FUNCTION {schema}.import_app_state(p_app_name text, p_state jsonb, p_max_bytes integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.lock_scopes(ARRAY[1], ARRAY[p_app_name], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY['{}']);
    PERFORM {schema}.merge_app_state(
        p_app_name, p_state - ARRAY(SELECT jsonb_object_keys(s.state)), NULL, NULL, clock_timestamp(), p_max_bytes)
       FROM {schema}.app_states s
      WHERE s.app_name = p_app_name AND p_state - ARRAY(SELECT jsonb_object_keys(s.state)) <> '{}';
END
$$;

-- Adds the missing keys of a user's state.
CREATE OR REPLACE FUNCTION {schema}.import_user_state(
    p_app_name text, p_user_id text, p_state jsonb, p_max_bytes integer
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.lock_scopes(ARRAY[1], ARRAY[p_app_name], ARRAY[p_user_id], ARRAY['{}'], ARRAY[NULL::text]);
    PERFORM {schema}.merge_user_state(
        p_app_name, p_user_id, p_state - ARRAY(SELECT jsonb_object_keys(s.state)), NULL, NULL, clock_timestamp(),
        p_max_bytes)
       FROM {schema}.user_states s
      WHERE s.app_name = p_app_name AND s.user_id = p_user_id
        AND p_state - ARRAY(SELECT jsonb_object_keys(s.state)) <> '{}';
END
$$;
