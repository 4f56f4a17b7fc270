-- Count the tokens of one call of a model, once per id and thread. Return false for a known id, or without the thread.
CREATE OR REPLACE FUNCTION {schema}.record_usage(
    p_thread_id uuid, p_id text, p_run_id text, p_usage json, p_created_at timestamptz DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.token_usage (
        thread_id, id, app_name, user_id, run_id, model, input_tokens, output_tokens, cached_tokens, cache_write_tokens,
        reasoning_tokens, created_at)
    SELECT t.id, p_id, t.app_name, t.user_id, p_run_id, p_usage ->> 'model', (p_usage ->> 'input_tokens')::bigint,
           (p_usage ->> 'output_tokens')::bigint, (p_usage ->> 'cached_tokens')::bigint,
           (p_usage ->> 'cache_write_tokens')::bigint, (p_usage ->> 'reasoning_tokens')::bigint,
           coalesce(p_created_at, clock_timestamp())
      FROM {schema}.threads t WHERE t.id = p_thread_id
    ON CONFLICT (thread_id, md5(id)) DO NOTHING;
    RETURN FOUND;
END
$$;
