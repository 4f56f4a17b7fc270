-- Find memories of a user that contain all of these keys, then all but one, and so on, until at least p_enough are found
-- or p_fewest keys are left. Reads at most 5 000 memories per step, however frequent the keys are.
CREATE OR REPLACE FUNCTION {schema}.find_by_frequent_terms(
    p_app_name text, p_user_id text, p_keys bigint[], p_filter {schema}.memory_filter, p_enough integer,
    p_fewest integer
) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_number integer := cardinality(p_keys);
    v_condition text;
    v_found bigint[];
    v_all bigint[] := '{}';
BEGIN
    FOR v_size IN REVERSE v_number .. p_fewest LOOP
        SELECT string_agg(format('m.terms @> %L::bigint[]', chosen.keys), ' OR ') INTO v_condition
          FROM (SELECT array_agg(p_keys[place]) AS keys
                  FROM generate_series(1, (1 << v_number) - 1) AS mask, generate_series(1, v_number) AS place
                 WHERE mask & (1 << (place - 1)) <> 0 GROUP BY mask HAVING count(*) = v_size) chosen;
        EXECUTE format(
            'SELECT array_agg(id) FROM (
                 SELECT m.id, m AS whole FROM {schema}.memories m
                  WHERE (%s) AND m.app_name IS NOT DISTINCT FROM $1 AND m.user_id IS NOT DISTINCT FROM $2
                  LIMIT 5000) found
              WHERE {schema}.memory_passes(whole, $3)', v_condition)
        INTO v_found USING p_app_name, p_user_id, p_filter;
        v_all := v_all || v_found;
        EXIT WHEN cardinality(v_all) >= p_enough;
    END LOOP;
    RETURN v_all;
END
$$;
