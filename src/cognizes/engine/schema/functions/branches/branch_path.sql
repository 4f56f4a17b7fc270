-- Return the events of a branch as ordered ranges of sequence numbers: its own segments, and those of its ancestors up to
-- the fork. Null means the active branch. SQLSTATE CZ404: no such branch.
CREATE OR REPLACE FUNCTION {schema}.find_branch(p_thread_id uuid, p_name text) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_number integer;
BEGIN
    IF p_name IS NULL THEN
        RETURN coalesce((SELECT branch FROM {schema}.branch_segments
                          WHERE thread_id = p_thread_id ORDER BY from_sequence DESC LIMIT 1), 0);
    ELSIF p_name = 'main' THEN
        RETURN 0;
    END IF;
    SELECT number INTO v_number FROM {schema}.branches
     WHERE thread_id = p_thread_id AND name = p_name AND deleted_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ404', MESSAGE = format('there is no branch %L in this thread', p_name);
    END IF;
    RETURN v_number;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.branch_path(p_thread_id uuid, p_name text)
RETURNS TABLE (first_sequence bigint, last_sequence bigint) LANGUAGE plpgsql STABLE ROWS 4 AS $$
DECLARE
    v_end CONSTANT bigint := 9223372036854775806; -- one less than the largest number: ranges store their end exclusively
BEGIN
    -- The usual case: the thread has no branches, or never left `main`, and nothing was removed.
    IF NOT EXISTS (SELECT FROM {schema}.branch_segments s WHERE s.thread_id = p_thread_id)
       AND coalesce(p_name, 'main') = 'main'
       AND NOT EXISTS (SELECT FROM {schema}.hidden_events h WHERE h.thread_id = p_thread_id) THEN
        RETURN QUERY SELECT 1::bigint, v_end;
        RETURN;
    END IF;
    -- `as_of`: of an ancestor, what it removed before the fork counts, and nothing that it removed later.
    RETURN QUERY
    WITH RECURSIVE line (depth, number, up_to, as_of) AS (
        SELECT 0, {schema}.find_branch(p_thread_id, p_name), v_end, v_end
        UNION ALL
        SELECT line.depth + 1, b.parent, least(line.up_to, b.forked_at), least(line.as_of, coalesce(b.write_number, 0))
          FROM line JOIN {schema}.branches b ON b.thread_id = p_thread_id AND b.number = line.number
    ), segment AS (
        SELECT s.branch, s.from_sequence,
               coalesce(lead(s.from_sequence) OVER (ORDER BY s.from_sequence) - 1, v_end) AS to_sequence
          FROM (SELECT 0 AS branch, 0::bigint AS from_sequence
                UNION ALL
                SELECT g.branch, g.from_sequence FROM {schema}.branch_segments g WHERE g.thread_id = p_thread_id) s
    ), own AS (
        SELECT line.depth, segment.from_sequence AS first, least(segment.to_sequence, line.up_to) AS last
          FROM line JOIN segment ON segment.branch = line.number
         WHERE segment.from_sequence <= line.up_to AND segment.to_sequence > 0
    ), hidden AS (
        SELECT line.depth, int8range(h.first_sequence, h.last_sequence, '[]') AS range
          FROM line
          JOIN {schema}.hidden_events h
            ON h.thread_id = p_thread_id AND h.branch = line.number AND h.write_number <= line.as_of
    )
    SELECT lower(part.range), upper(part.range) - 1
      FROM own
     -- A branch removes its own events and those of its ancestors.
     CROSS JOIN LATERAL unnest(
            int8multirange(int8range(own.first, own.last, '[]'))
            - coalesce((SELECT range_agg(hidden.range) FROM hidden WHERE hidden.depth <= own.depth), '{}')
           ) AS part (range)
     ORDER BY 1;
END
$$;
