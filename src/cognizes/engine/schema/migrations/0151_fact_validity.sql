-- From when the value is valid; `updated_at` is its last confirmation. Null for facts that an older version stored: `updated_at`.
ALTER TABLE {schema}.agent_long_term_memory ADD COLUMN IF NOT EXISTS valid_from timestamptz;
