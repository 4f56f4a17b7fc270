-- Creates a batch of sessions in one transaction. Returns the status of each item in the order given: `created`, or `exists`
-- if the session id is taken. A null array is an array of nulls. Deltas of wider scopes are merged into what is there: concurrent creates lose
-- nothing. Sent again after a lost answer, it finds its own sessions and answers `created` as before.
CREATE OR REPLACE FUNCTION {schema}.create_sessions(
    p_thread_ids uuid[],
    p_app_names text[],
    p_user_ids text[],
    p_session_ids text[],
    p_titles text[],
    p_metadata text[],
    p_states text[],
    p_user_deltas text[],
    p_app_deltas text[],
    p_max_state_bytes integer
) RETURNS TABLE (status text, thread_id uuid, created_at timestamptz, user_state text, app_state text,
                 user_version bigint, app_version bigint)
LANGUAGE plpgsql
-- One plan, made once, maybe while the tables are empty: it must be one that stays good when they have grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_created uuid[];
    v_has_wider boolean := cardinality(array_remove(p_user_deltas, NULL)) > 0
                        OR cardinality(array_remove(p_app_deltas, NULL)) > 0;
    v_item record;
    v_now timestamptz;
    v_numbers bigint[];
BEGIN
    IF v_has_wider THEN
        PERFORM {schema}.lock_scopes(
            ARRAY(SELECT generate_series(1, cardinality(p_thread_ids))), p_app_names, p_user_ids, p_user_deltas,
            p_app_deltas);
    END IF;
    -- A session and its writes to wider scopes have one number, so each session sees the writes of those before it.
    v_numbers := ARRAY(SELECT nextval('{schema}.write_numbers') FROM generate_series(1, cardinality(p_thread_ids)));
    v_now := clock_timestamp();
    WITH created AS (
        INSERT INTO {schema}.threads (id, app_name, user_id, session_id, title, metadata, state, is_as_created, began_at,
                                      created_at, updated_at, began_number)
        SELECT item.thread_id, item.app_name, item.user_id, item.session_id, item.title, coalesce(item.metadata, '{}')::jsonb,
               coalesce(item.state, '{}')::jsonb, item.state IS NOT NULL, moment.at, moment.at, moment.at,
               v_numbers[item.place]
          FROM unnest(p_thread_ids, p_app_names, p_user_ids, p_session_ids, p_titles, p_metadata, p_states)
               WITH ORDINALITY AS item (thread_id, app_name, user_id, session_id, title, metadata, state, place)
         CROSS JOIN LATERAL (SELECT v_now + item.place * interval '1 microsecond' AS at) AS moment
        ON CONFLICT (app_name, user_id, md5(session_id)) DO NOTHING
        RETURNING id, pg_column_size(state) AS size
    )
    SELECT array_agg(id), {schema}.refuse_large_state('session', max(size), p_max_state_bytes)
      INTO v_created
      FROM created;

    IF v_has_wider THEN
        FOR v_item IN
            SELECT item.*, v_now + item.place * interval '1 microsecond' AS at
              FROM unnest(p_thread_ids, p_app_names, p_user_ids, p_user_deltas, p_app_deltas)
                   WITH ORDINALITY AS item (thread_id, app_name, user_id, user_delta, app_delta, place)
             WHERE item.thread_id = ANY (v_created)
             ORDER BY item.place
        LOOP
            IF v_item.user_delta IS NOT NULL THEN
                PERFORM {schema}.merge_user_state(v_item.app_name, v_item.user_id, v_item.user_delta::jsonb,
                                                  v_item.thread_id, 0, v_item.at, p_max_state_bytes,
                                                  v_numbers[v_item.place]);
            END IF;
            IF v_item.app_delta IS NOT NULL THEN
                PERFORM {schema}.merge_app_state(v_item.app_name, v_item.app_delta::jsonb, v_item.thread_id, 0,
                                                 v_item.at, p_max_state_bytes, v_numbers[v_item.place]);
            END IF;
        END LOOP;
    END IF;

    RETURN QUERY
    SELECT CASE WHEN found.id IS NULL THEN 'created' ELSE 'exists' END, coalesce(found.id, item.thread_id),
           coalesce(found.created_at, v_now + item.place * interval '1 microsecond'),
           u.state::text, a.state::text, u.version, a.version
      FROM unnest(p_thread_ids, p_app_names, p_user_ids, p_session_ids)
           WITH ORDINALITY AS item (thread_id, app_name, user_id, session_id, place)
      LEFT JOIN {schema}.threads found
        ON NOT item.thread_id = ANY (coalesce(v_created, '{}')) AND found.app_name = item.app_name
       AND found.user_id = item.user_id AND md5(found.session_id) = md5(item.session_id)
      LEFT JOIN {schema}.user_states u ON u.user_id = item.user_id AND u.app_name = item.app_name
      LEFT JOIN {schema}.app_states a ON a.app_name = item.app_name
     ORDER BY item.place;
END
$$;
