-- Appends events to several sessions in one transaction, in the order given; creates those that do not exist, under p_new_ids.
-- p_counts are the numbers of events of each session. The rules and statuses are those of `append_events`; `fenced`, `missing` and
-- `busy` concern all events of a session. The caller notifies after the commit.
CREATE OR REPLACE FUNCTION {schema}.append_to_sessions(
    p_app_names text[], p_user_ids text[], p_session_ids text[], p_new_ids uuid[], p_counts integer[], p_run_ids text[],
    p_may_be_resent boolean[], p_fence_run_ids text[], p_fence_attempts integer[], p_event_ids text[], p_authors text[],
    p_event_types text[], p_contents text[], p_roles text[], p_texts text[], p_message_ids text[], p_wait boolean
) RETURNS TABLE (status text, thread_id uuid, sequence_nums bigint[], created_ats timestamptz[])
LANGUAGE plpgsql
-- One plan, made once, maybe while the tables are empty: it must be one that stays good when they have grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_events CONSTANT integer := cardinality(p_event_ids);
    v_ids uuid[];
    v_threads uuid[];
    v_owners integer[];
    v_places integer[];
    v_runs text[];
    v_resent boolean[];
    v_fences text[];
    v_attempts integer[];
BEGIN
    SELECT array_agg(found.id ORDER BY item.place) INTO v_ids
      FROM unnest(p_app_names, p_user_ids, p_session_ids) WITH ORDINALITY AS item (app_name, user_id, session_id, place)
      LEFT JOIN LATERAL (
            SELECT t.id FROM {schema}.threads t
             WHERE t.app_name = item.app_name AND t.user_id = item.user_id AND md5(t.session_id) = md5(item.session_id)
               AND t.session_id = item.session_id) AS found ON true;
    IF array_position(v_ids, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(item.id, created.thread_id) ORDER BY item.place) INTO v_ids
          FROM unnest(v_ids) WITH ORDINALITY AS item (id, place)
          LEFT JOIN (
                SELECT answer.thread_id, missing.places[answer.number] AS place
                  FROM (SELECT array_agg(m.new_id ORDER BY m.place) AS new_ids, array_agg(m.app_name ORDER BY m.place) AS apps,
                               array_agg(m.user_id ORDER BY m.place) AS users,
                               array_agg(m.session_id ORDER BY m.place) AS sessions,
                               array_agg(m.place ORDER BY m.place) AS places
                          FROM unnest(p_new_ids, p_app_names, p_user_ids, p_session_ids, v_ids)
                               WITH ORDINALITY AS m (new_id, app_name, user_id, session_id, id, place)
                         WHERE m.id IS NULL) AS missing
                 CROSS JOIN LATERAL {schema}.create_sessions(
                       missing.new_ids, missing.apps, missing.users, missing.sessions, NULL, NULL, NULL, NULL, NULL,
                       2147483647) WITH ORDINALITY
                       AS answer (status, thread_id, created_at, user_state, app_state, user_version, app_version, number)
               ) AS created ON created.place = item.place;
    END IF;
    -- A batch may contain a session twice.
    v_threads := ARRAY(SELECT DISTINCT id FROM unnest(v_ids) AS item (id));
    SELECT array_agg(item.place), array_agg(array_position(v_threads, v_ids[item.place])), array_agg(p_run_ids[item.place]),
           array_agg(p_may_be_resent[item.place]), array_agg(p_fence_run_ids[item.place]),
           array_agg(p_fence_attempts[item.place])
      INTO v_owners, v_places, v_runs, v_resent, v_fences, v_attempts
      FROM (SELECT item.place::integer
              FROM unnest(p_counts) WITH ORDINALITY AS item (count, place) CROSS JOIN generate_series(1, item.count)
             ORDER BY item.place) AS item;
    RETURN QUERY
    SELECT min(answer.status), v_ids[item.place], array_agg(answer.sequence_num ORDER BY answer.number),
           array_agg(answer.created_at ORDER BY answer.number)
      FROM {schema}.append_events(
            v_threads, v_places, p_event_ids, v_runs, array_fill(''::text, ARRAY[v_events]), p_authors, p_event_types,
            p_contents, array_fill('{}'::text, ARRAY[v_events]), NULL, NULL, NULL, NULL, p_roles, p_texts,
            p_message_ids, v_resent, p_wait, 0, 0, p_fence_run_ids => v_fences, p_fence_attempts => v_attempts,
            p_notify => false)
           WITH ORDINALITY AS answer (status, sequence_num, version, created_at, number)
     CROSS JOIN LATERAL (SELECT v_owners[answer.number] AS place) AS item
     GROUP BY item.place
     ORDER BY item.place;
END
$$;
