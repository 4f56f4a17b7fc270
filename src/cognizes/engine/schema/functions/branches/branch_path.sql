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
    v_end CONSTANT bigint := 9223372036854775807;
BEGIN
    -- The usual case: the thread has no branches, or never left `main`.
    IF NOT EXISTS (SELECT FROM {schema}.branch_segments s WHERE s.thread_id = p_thread_id)
       AND coalesce(p_name, 'main') = 'main' THEN
        RETURN QUERY SELECT 1::bigint, v_end;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE line (number, up_to) AS (
        SELECT {schema}.find_branch(p_thread_id, p_name), v_end
        UNION ALL
        SELECT b.parent, least(line.up_to, b.forked_at)
          FROM line JOIN {schema}.branches b ON b.thread_id = p_thread_id AND b.number = line.number
    ), segment AS (
        SELECT s.branch, s.from_sequence,
               coalesce(lead(s.from_sequence) OVER (ORDER BY s.from_sequence) - 1, v_end) AS to_sequence
          FROM (SELECT 0 AS branch, 0::bigint AS from_sequence
                UNION ALL
                SELECT g.branch, g.from_sequence FROM {schema}.branch_segments g WHERE g.thread_id = p_thread_id) s
    )
    SELECT segment.from_sequence, least(segment.to_sequence, line.up_to)
      FROM line JOIN segment ON segment.branch = line.number
     WHERE segment.from_sequence <= line.up_to AND segment.to_sequence > 0
     ORDER BY 1;
END
$$;
