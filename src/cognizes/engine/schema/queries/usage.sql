-- record_usage: Count the tokens of one call of a model, once.
SELECT {schema}.record_usage($1, $2, $3, $4::text::json);

-- sum_usage_of_thread: Sum the tokens of a thread, or of one of its runs, by model.
SELECT model, count(*) AS calls, sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(cached_tokens)::bigint AS cached_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
       sum(reasoning_tokens)::bigint AS reasoning_tokens
  FROM {schema}.token_usage
 WHERE thread_id = $1 AND ($2::text IS NULL OR run_id = $2)
 GROUP BY model ORDER BY model;

-- sum_usage_of_runs: Sum the tokens of some runs, each named by its thread and id, by model.
SELECT u.thread_id, u.run_id, model, count(*) AS calls, sum(input_tokens)::bigint AS input_tokens,
       sum(output_tokens)::bigint AS output_tokens, sum(cached_tokens)::bigint AS cached_tokens,
       sum(cache_write_tokens)::bigint AS cache_write_tokens, sum(reasoning_tokens)::bigint AS reasoning_tokens
  FROM unnest($1::uuid[], $2::text[]) AS named (thread_id, run_id)
  JOIN {schema}.token_usage u ON u.thread_id = named.thread_id AND u.run_id = named.run_id
 GROUP BY u.thread_id, u.run_id, model ORDER BY u.thread_id, u.run_id, model;

-- sum_usage_of_user: Sum the tokens of a user from $3 to before $4, by model.
SELECT model, count(*) AS calls, sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(cached_tokens)::bigint AS cached_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
       sum(reasoning_tokens)::bigint AS reasoning_tokens
  FROM {schema}.token_usage
 WHERE app_name = $1 AND user_id = $2 AND created_at >= coalesce($3::timestamptz, '-infinity')
   AND created_at < coalesce($4::timestamptz, 'infinity')
 GROUP BY model ORDER BY model;

-- sum_usage_of_app: Sum the tokens of an app from $2 to before $3, by model.
SELECT model, count(*) AS calls, sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
       sum(cached_tokens)::bigint AS cached_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
       sum(reasoning_tokens)::bigint AS reasoning_tokens
  FROM {schema}.token_usage
 WHERE app_name = $1 AND created_at >= coalesce($2::timestamptz, '-infinity')
   AND created_at < coalesce($3::timestamptz, 'infinity')
 GROUP BY model ORDER BY model;
