-- Return the index keys of words: stemmed, without stop words, with repetitions. A key is a hash of the user and the word.
-- md5, not hashtext: a dump must be valid on another machine or a newer server.
CREATE OR REPLACE FUNCTION {schema}.memory_term_keys(p_app_name text, p_user_id text, p_words text) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(('x' || left(md5(p_app_name || chr(1) || p_user_id || chr(1) || stem), 16))::bit(64)::bigint
                              ORDER BY place), '{}')
      FROM string_to_table(p_words, ' ') WITH ORDINALITY AS words (word, place),
           unnest(ts_lexize('pg_catalog.english_stem', word)) AS stem
$$;
