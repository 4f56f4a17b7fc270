-- Locks the user and app states that a batch will change, and creates missing ones: users before apps, each in the order of
-- their keys. Item i belongs to the app p_app_names[p_index[i]] and the user p_user_ids[p_index[i]].
-- A write number taken after this is higher than that of every earlier write to those states: time travel relies on it.
CREATE OR REPLACE FUNCTION {schema}.lock_scopes(
    p_index integer[], p_app_names text[], p_user_ids text[], p_user_deltas text[], p_app_deltas text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(array_remove(p_user_deltas, NULL)) > 0 THEN
        INSERT INTO {schema}.user_states (user_id, app_name)
        SELECT DISTINCT p_user_ids[item.owner], p_app_names[item.owner]
          FROM unnest(p_index, p_user_deltas) AS item (owner, delta)
         WHERE item.delta IS NOT NULL AND p_user_ids[item.owner] IS NOT NULL
         ORDER BY 1, 2
        ON CONFLICT DO NOTHING;
        PERFORM FROM {schema}.user_states s
          WHERE (s.user_id, s.app_name) IN (
                SELECT p_user_ids[item.owner], p_app_names[item.owner]
                  FROM unnest(p_index, p_user_deltas) AS item (owner, delta) WHERE item.delta IS NOT NULL)
          ORDER BY s.user_id, s.app_name FOR UPDATE;
    END IF;
    IF cardinality(array_remove(p_app_deltas, NULL)) > 0 THEN
        INSERT INTO {schema}.app_states (app_name)
        SELECT DISTINCT p_app_names[item.owner]
          FROM unnest(p_index, p_app_deltas) AS item (owner, delta)
         WHERE item.delta IS NOT NULL AND p_app_names[item.owner] IS NOT NULL
         ORDER BY 1
        ON CONFLICT DO NOTHING;
        PERFORM FROM {schema}.app_states s
          WHERE s.app_name IN (
                SELECT p_app_names[item.owner]
                  FROM unnest(p_index, p_app_deltas) AS item (owner, delta) WHERE item.delta IS NOT NULL)
          ORDER BY s.app_name FOR UPDATE;
    END IF;
END
$$;
