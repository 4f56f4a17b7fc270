-- Return the last entries of a history, newest first: `p_head_id` and the entries before it, at most p_limit (null: all).
CREATE OR REPLACE FUNCTION {schema}.read_conversation_history(p_app_name text, p_head_id text, p_limit integer)
RETURNS TABLE (id text, parent_id text, kind text, message text, written_by text) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE history AS (
        SELECT 1 AS place, e.id, e.parent_id FROM {schema}.conversation_entries e
         WHERE e.app_name = p_app_name AND e.id = p_head_id
        UNION ALL
        SELECT h.place + 1, e.id, e.parent_id
          FROM history h JOIN {schema}.conversation_entries e ON e.app_name = p_app_name AND e.id = h.parent_id
         WHERE p_limit IS NULL OR h.place < p_limit
    )
    SELECT e.id, e.parent_id, e.kind, e.message::text, e.written_by
      FROM history h JOIN {schema}.conversation_entries e ON e.app_name = p_app_name AND e.id = h.id
     ORDER BY h.place
$$;
