-- The status machine of runs, in one table.
CREATE OR REPLACE FUNCTION {schema}.run_transition_allowed(p_from text, p_to text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_from, p_to) IN (
        ('pending', 'running'), ('pending', 'failed'), ('pending', 'cancelled'),
        ('running', 'waiting'), ('running', 'completed'), ('running', 'failed'), ('running', 'cancelled'),
        ('running', 'pending'),  -- its lease ran out, or its worker gave it back: another worker may claim it
        ('waiting', 'pending'), ('waiting', 'running'), ('waiting', 'failed'), ('waiting', 'cancelled'),
        ('waiting', 'completed'),  -- another run of the thread continues with the answer
        ('failed', 'pending')    -- somebody asked for another try
    )
$$;
