-- Locks the user and app states that a batch will change, users before apps, each in the order of their keys.
-- Item i belongs to the thread p_app_names[p_index[i]], p_user_ids[p_index[i]].
CREATE OR REPLACE FUNCTION {schema}.lock_scopes(
    p_index integer[], p_app_names text[], p_user_ids text[], p_user_deltas text[], p_app_deltas text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(array_remove(p_user_deltas, NULL)) > 0 THEN
        PERFORM FROM {schema}.user_states s
          WHERE (s.user_id, s.app_name) IN (
                SELECT p_user_ids[item.thread], p_app_names[item.thread]
                  FROM unnest(p_index, p_user_deltas) AS item (thread, delta) WHERE item.delta IS NOT NULL)
          ORDER BY s.user_id, s.app_name FOR UPDATE;
    END IF;
    IF cardinality(array_remove(p_app_deltas, NULL)) > 0 THEN
        PERFORM FROM {schema}.app_states s
          WHERE s.app_name IN (
                SELECT p_app_names[item.thread]
                  FROM unnest(p_index, p_app_deltas) AS item (thread, delta) WHERE item.delta IS NOT NULL)
          ORDER BY s.app_name FOR UPDATE;
    END IF;
END
$$;
