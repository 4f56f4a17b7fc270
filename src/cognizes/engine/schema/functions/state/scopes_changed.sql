-- Returns whether the version of a user's or an app's state differs from the one that a writer read; null is not compared.
CREATE OR REPLACE FUNCTION {schema}.scopes_changed(
    p_app_name text, p_user_id text, p_expected_user_version bigint, p_expected_app_version bigint
) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_expected_user_version <> coalesce(
               (SELECT version FROM {schema}.user_states WHERE user_id = p_user_id AND app_name = p_app_name), 0)
        OR p_expected_app_version <> coalesce(
               (SELECT version FROM {schema}.app_states WHERE app_name = p_app_name), 0)
$$;
