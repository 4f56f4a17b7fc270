-- Raises SQLSTATE CZ413 if a state exceeds its limit, which rolls the transaction back.
CREATE OR REPLACE FUNCTION {schema}.refuse_large_state(p_scope text, p_size integer, p_max_bytes integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_size > p_max_bytes THEN
        RAISE EXCEPTION USING ERRCODE = 'CZ413', MESSAGE = format('%s state', p_scope),
            DETAIL = p_size::text, HINT = p_max_bytes::text;
    END IF;
END
$$;
