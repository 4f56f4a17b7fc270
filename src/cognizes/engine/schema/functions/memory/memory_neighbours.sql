-- Returns session, author and length of memories, and of those of the three before and after each in its session that pass the
-- filter, with their distance, which is negative for those before. However few memories pass, it reads twelve for each. Without sorts the planner takes the neighbours from idx_memories_session, which has their
-- order. On a table without statistics it expects one row per user and would read and sort all memories of the user instead,
-- for every memory.
CREATE OR REPLACE FUNCTION {schema}.memory_neighbours(
    p_app_name text, p_user_id text, p_filter {schema}.memory_filter, p_ids bigint[]
) RETURNS TABLE (
    origin bigint, session_id text, id bigint, distance bigint, author text, length integer, importance real,
    created_at timestamptz
)
LANGUAGE sql STABLE SET enable_sort = off SET enable_bitmapscan = off AS $$
    SELECT m.id, m.session_id, near.id, near.distance, near.author, near.length, near.importance, near.created_at
      FROM unnest(p_ids) AS wanted (id)
      JOIN {schema}.memories m ON m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = wanted.id
       AND {schema}.memory_passes(m, p_filter)
     CROSS JOIN LATERAL (
            SELECT m.id, 0 AS distance, m.author, m.length, m.importance, m.created_at
            UNION ALL
            (SELECT x.id, -x.distance, x.author, x.length, x.importance, x.created_at
               FROM (SELECT (y.n).*, row_number() OVER (ORDER BY y.position DESC, y.id DESC) AS distance, y.n AS whole
                       FROM (SELECT n, n.position, n.id FROM {schema}.memories n
                              WHERE n.app_name = p_app_name AND n.user_id = p_user_id AND md5(n.session_id) = md5(m.session_id)
                                AND n.session_id IS NOT NULL AND m.session_id IS NOT NULL
                                AND (n.position, n.id) < (m.position, m.id)
                              ORDER BY n.position DESC, n.id DESC LIMIT 6) y
                      WHERE (y.n).kind = m.kind) x
              WHERE x.distance <= 3 AND {schema}.memory_passes(x.whole, p_filter))
            UNION ALL
            (SELECT x.id, x.distance, x.author, x.length, x.importance, x.created_at
               FROM (SELECT (y.n).*, row_number() OVER (ORDER BY y.position, y.id) AS distance, y.n AS whole
                       FROM (SELECT n, n.position, n.id FROM {schema}.memories n
                              WHERE n.app_name = p_app_name AND n.user_id = p_user_id AND md5(n.session_id) = md5(m.session_id)
                                AND n.session_id IS NOT NULL AND m.session_id IS NOT NULL
                                AND (n.position, n.id) > (m.position, m.id)
                              ORDER BY n.position, n.id LIMIT 6) y
                      WHERE (y.n).kind = m.kind) x
              WHERE x.distance <= 3 AND {schema}.memory_passes(x.whole, p_filter))) near
$$;
