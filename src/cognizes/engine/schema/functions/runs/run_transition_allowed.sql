-- Return whether a run may change from one status to another.
CREATE OR REPLACE FUNCTION {schema}.run_transition_allowed(p_from text, p_to text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_from, p_to) IN (
        ('pending', 'running'), ('pending', 'failed'), ('pending', 'cancelled'),
        ('running', 'waiting'), ('running', 'completed'), ('running', 'failed'), ('running', 'cancelled'),
        ('running', 'pending'),  -- its lease expired, or its worker released it
        ('waiting', 'pending'), ('waiting', 'running'), ('waiting', 'failed'), ('waiting', 'cancelled'),
        ('waiting', 'completed'),  -- another run of the thread continues with the answer
        ('failed', 'pending')    -- a retry was requested
    )
$$;
