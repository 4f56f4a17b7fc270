-- Appends a batch of events in one transaction, in the order given. The rules and statuses are those of `append_event`, per item,
-- but each table is written by one statement. `p_threads` are distinct; item i belongs to p_threads[p_thread_index[i]]; a batch
-- has no two items of one thread with one id. A null array is an array of nulls.
-- All locks are taken first, each kind in one order, so that two batches never deadlock. Without p_wait an item whose thread is
-- locked by another transaction gets the status `busy`: a batch never waits for one of its items.
CREATE OR REPLACE FUNCTION {schema}.append_events(
    p_threads uuid[],
    p_thread_index integer[],
    p_event_ids text[],
    p_run_ids text[],
    p_invocation_ids text[],
    p_authors text[],
    p_event_types text[],
    p_contents text[],
    p_actions text[],
    p_deltas text[],
    p_user_deltas text[],
    p_app_deltas text[],
    p_expected_versions bigint[],
    p_roles text[],
    p_texts text[],
    p_message_ids text[],
    p_may_be_resent boolean[],
    p_wait boolean,
    p_snapshot_every integer,
    p_max_state_bytes integer,
    p_expected_sequences bigint[] DEFAULT NULL,
    p_expected_user_versions bigint[] DEFAULT NULL,
    p_expected_app_versions bigint[] DEFAULT NULL,
    p_fence_run_ids text[] DEFAULT NULL,
    p_fence_attempts integer[] DEFAULT NULL,
    p_notify boolean DEFAULT true,
    p_usages text[] DEFAULT NULL
) RETURNS TABLE (status text, sequence_num bigint, version bigint, created_at timestamptz)
LANGUAGE plpgsql
-- The plan is made once, possibly while the tables are empty: these settings keep it good when they have grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    -- by thread
    v_versions bigint[];
    v_sequences bigint[];
    v_app_names text[];
    v_user_ids text[];
    v_as_created uuid[];
    v_deltas jsonb[] := array_fill(NULL::jsonb, ARRAY[cardinality(p_threads)]);
    v_updated timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(p_threads)]);
    v_appended bigint[] := array_fill(0, ARRAY[cardinality(p_threads)]);
    -- by item
    v_items integer := cardinality(p_thread_index);
    v_statuses text[] := array_fill(NULL::text, ARRAY[v_items]);
    v_item_sequences bigint[] := array_fill(NULL::bigint, ARRAY[v_items]);
    v_item_versions bigint[] := array_fill(NULL::bigint, ARRAY[v_items]);
    v_times timestamptz[];
    v_numbers bigint[];
    v_has_wider boolean := p_user_deltas IS NOT NULL OR p_app_deltas IS NOT NULL;
    v_now timestamptz;
    v_has_messages boolean := false;
    v_sequences_matter boolean := cardinality(array_remove(p_expected_sequences, NULL)) > 0;
    v_snapshots uuid[] := '{}';
    v_refused record;
    v_size integer;
    t integer;
BEGIN
    IF p_wait THEN
        PERFORM FROM {schema}.threads WHERE id = ANY (p_threads) ORDER BY id FOR NO KEY UPDATE;
    END IF;
    WITH locked AS MATERIALIZED (
        SELECT id, version, last_sequence, app_name, user_id, is_as_created
          FROM {schema}.threads WHERE id = ANY (p_threads) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT array_agg(l.version ORDER BY asked.place), array_agg(l.last_sequence ORDER BY asked.place),
           array_agg(l.app_name ORDER BY asked.place), array_agg(l.user_id ORDER BY asked.place),
           array_agg(l.id) FILTER (WHERE l.is_as_created)
      INTO v_versions, v_sequences, v_app_names, v_user_ids, v_as_created
      FROM unnest(p_threads) WITH ORDINALITY AS asked (id, place) LEFT JOIN locked l ON l.id = asked.id;
    IF v_has_wider THEN
        v_numbers := array_fill(NULL::bigint, ARRAY[v_items]);
        PERFORM {schema}.lock_scopes(p_thread_index, v_app_names, v_user_ids, p_user_deltas, p_app_deltas);
    END IF;

    v_now := clock_timestamp();
    v_times := array_fill(NULL::timestamptz, ARRAY[v_items]);
    FOR i IN 1 .. v_items LOOP
        t := p_thread_index[i];
        v_times[i] := v_now + i * interval '1 microsecond';
        IF v_sequences[t] IS NULL THEN
            v_statuses[i] := CASE WHEN EXISTS (SELECT FROM {schema}.threads WHERE id = p_threads[t])
                                  THEN 'busy' ELSE 'missing' END;
            CONTINUE;
        END IF;
        IF p_expected_versions[i] <> v_versions[t] OR p_may_be_resent[i] OR p_fence_run_ids[i] IS NOT NULL
           OR p_expected_sequences[i] < v_sequences[t] OR p_expected_user_versions[i] IS NOT NULL
           OR p_expected_app_versions[i] IS NOT NULL
        THEN
            SELECT * INTO v_refused
              FROM {schema}.check_append(p_threads[t], p_event_ids[i], v_app_names[t], v_user_ids[t], v_versions[t],
                                         v_sequences[t], p_may_be_resent[i], p_expected_versions[i],
                                         p_expected_sequences[i], p_expected_user_versions[i],
                                         p_expected_app_versions[i], p_fence_run_ids[i], p_fence_attempts[i],
                                         v_appended[t]);
            IF v_refused.status IS NOT NULL THEN
                v_statuses[i] := v_refused.status;
                v_item_sequences[i] := v_refused.sequence_num;
                v_item_versions[i] := v_refused.version;
                v_times[i] := v_refused.created_at;
                CONTINUE;
            END IF;
        END IF;

        v_statuses[i] := 'stored';
        v_updated[t] := v_times[i];
        v_sequences[t] := v_sequences[t] + 1;
        v_item_sequences[i] := v_sequences[t];
        IF p_deltas[i] IS NOT NULL THEN
            -- Delete marks stay in the merged delta as values, so the last item of the batch wins.
            v_deltas[t] := coalesce(v_deltas[t] || p_deltas[i]::jsonb, p_deltas[i]::jsonb);
        END IF;
        IF v_has_wider THEN
            -- The number of this event and of its writes, in the order of the batch.
            v_numbers[i] := nextval('{schema}.write_numbers');
        END IF;
        IF p_user_deltas[i] IS NOT NULL THEN
            PERFORM {schema}.merge_user_state(v_app_names[t], v_user_ids[t], p_user_deltas[i]::jsonb, p_threads[t],
                                              v_sequences[t], v_times[i], p_max_state_bytes, v_numbers[i]);
        END IF;
        IF p_app_deltas[i] IS NOT NULL THEN
            PERFORM {schema}.merge_app_state(v_app_names[t], p_app_deltas[i]::jsonb, p_threads[t], v_sequences[t],
                                             v_times[i], p_max_state_bytes, v_numbers[i]);
        END IF;
        IF coalesce(p_deltas[i], p_user_deltas[i], p_app_deltas[i]) IS NOT NULL THEN
            v_versions[t] := v_versions[t] + 1;
        END IF;
        v_item_versions[i] := v_versions[t];
        IF v_sequences_matter AND {schema}.is_conversation(
            p_event_types[i], coalesce(p_deltas[i], p_user_deltas[i], p_app_deltas[i]) IS NOT NULL, p_contents[i]
        ) THEN
            v_appended[t] := v_sequences[t];
        END IF;
        v_has_messages := v_has_messages OR p_roles[i] IS NOT NULL;
        IF p_snapshot_every > 0 AND v_sequences[t] % p_snapshot_every = 0 THEN
            v_snapshots := v_snapshots || p_threads[t];
        END IF;
    END LOOP;

    IF v_as_created IS NOT NULL THEN
        PERFORM {schema}.snapshot_initial_states(array_agg(head.thread_id))
           FROM unnest(p_threads, v_deltas) AS head (thread_id, delta)
          WHERE head.delta IS NOT NULL AND head.thread_id = ANY (v_as_created);
    END IF;
    -- With CASE, a large state without a delta is neither read nor rewritten.
    WITH changed AS (
        UPDATE {schema}.threads
           SET last_sequence = head.sequence_num, version = head.version, updated_at = head.updated_at,
               is_as_created = is_as_created AND head.delta IS NULL,
               state = CASE WHEN head.delta IS NULL THEN state ELSE {schema}.merge_state(state, head.delta) END
          FROM unnest(p_threads, v_sequences, v_versions, v_deltas, v_updated)
               AS head (thread_id, sequence_num, version, delta, updated_at)
         WHERE id = head.thread_id AND head.updated_at IS NOT NULL
        RETURNING CASE WHEN head.delta IS NOT NULL THEN pg_column_size(state) END AS size
    )
    SELECT max(size) INTO v_size FROM changed;
    PERFORM {schema}.refuse_large_state('session', v_size, p_max_state_bytes);

    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', 'off', true);
    END IF;
    INSERT INTO {schema}.events (thread_id, sequence_num, id, app_name, run_id, invocation_id, author, event_type,
                                 content, actions, version, changes_state, created_at, write_number)
    SELECT p_threads[item.thread], item.sequence_num, item.event_id, v_app_names[item.thread], item.run_id,
           item.invocation_id, item.author, item.event_type, item.content::json, item.actions::json, item.version,
           coalesce(item.delta, item.user_delta, item.app_delta) IS NOT NULL, item.created_at,
           coalesce(item.write_number, nextval('{schema}.write_numbers'))
      FROM unnest(p_thread_index, p_event_ids, p_run_ids, p_invocation_ids, p_authors, p_event_types, p_contents,
                  p_actions, p_deltas, p_user_deltas, p_app_deltas, v_item_sequences, v_item_versions, v_statuses,
                  v_times, v_numbers)
           AS item (thread, event_id, run_id, invocation_id, author, event_type, content, actions, delta, user_delta,
                    app_delta, sequence_num, version, status, created_at, write_number)
     WHERE item.status = 'stored';
    IF NOT p_notify THEN
        PERFORM set_config('cognizes.notify', '', true);
    END IF;
    IF v_has_messages THEN
        INSERT INTO {schema}.messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
        SELECT p_threads[item.thread], item.sequence_num, item.message_id, item.event_id, v_app_names[item.thread],
               item.role, item.body, item.created_at
          FROM unnest(p_thread_index, p_event_ids, p_roles, p_texts, p_message_ids, v_item_sequences, v_statuses,
                      v_times)
               AS item (thread, event_id, role, body, message_id, sequence_num, status, created_at)
         WHERE item.status = 'stored' AND item.role IS NOT NULL;
    END IF;
    IF p_usages IS NOT NULL THEN
        PERFORM {schema}.record_usage(p_threads[item.thread], item.event_id, item.run_id, item.usage::json, item.created_at)
           FROM unnest(p_thread_index, p_event_ids, p_run_ids, p_usages, v_statuses, v_times)
                AS item (thread, event_id, run_id, usage, status, created_at)
          WHERE item.status = 'stored' AND item.usage IS NOT NULL;
    END IF;
    PERFORM {schema}.take_snapshot(id) FROM unnest(v_snapshots) AS due (id);

    RETURN QUERY SELECT * FROM unnest(v_statuses, v_item_sequences, v_item_versions, v_times);
END
$$;
