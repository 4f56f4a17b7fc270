-- Return the keys of a query that an estimated 2 500 or more memories of a user contain, rarest first, with the estimates. Of
-- the other keys those are returned, too, that would make the sum of the estimates of the rarer ones exceed 12 000.
-- The sample is a thousand memories spread over twenty periods, because the subjects of a user change over time.
CREATE OR REPLACE FUNCTION {schema}.find_frequent_terms(
    p_app_name text, p_user_id text, p_keys bigint[], p_memories double precision,
    OUT keys bigint[], OUT found double precision[]
) LANGUAGE sql STABLE SET enable_indexscan = on SET enable_nestloop = on AS $$
    WITH span AS (
        SELECT min(id) AS first, max(id) AS last FROM {schema}.memories
         WHERE app_name = p_app_name AND user_id = p_user_id
    ), sample AS MATERIALIZED (
        SELECT part.terms
          FROM span, generate_series(0, 19) AS number,
               LATERAL (SELECT m.terms FROM {schema}.memories m
                         WHERE m.app_name = p_app_name AND m.user_id = p_user_id
                           AND m.id >= span.first + (span.last - span.first) / 20 * number
                         ORDER BY m.id LIMIT 50) part
    ), counted AS (
        SELECT key, count(*) AS held, (SELECT count(*) FROM sample) AS size
          FROM sample, (SELECT DISTINCT unnest(p_keys)) AS asked (key)
         WHERE sample.terms @> ARRAY[key] GROUP BY key
    ), summed AS (
        SELECT *, sum(held) OVER (ORDER BY held, key) AS sum FROM counted
    )
    SELECT coalesce(array_agg(key ORDER BY held, key), '{}'),
           coalesce(array_agg(p_memories * held / size ORDER BY held, key), '{}')
      FROM summed
     WHERE held >= greatest(4, 2500 * size / p_memories) OR sum > 12000 * size / p_memories
$$;
