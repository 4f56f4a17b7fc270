-- Adds events of another store to a thread, with their times, and sets its state to the state after them. Deltas are not
-- applied: user and app states are imported separately. Returns false if the thread was deleted, or if its head is not the
-- expected one.
CREATE OR REPLACE FUNCTION {schema}.import_events(
    p_thread_id uuid,
    p_after bigint,
    p_event_ids text[],
    p_invocation_ids text[],
    p_authors text[],
    p_event_types text[],
    p_contents text[],
    p_actions text[],
    p_changes_state boolean[],
    p_roles text[],
    p_texts text[],
    p_message_ids text[],
    p_times timestamptz[],
    p_state jsonb,
    p_created_at timestamptz,
    p_updated_at timestamptz
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_app_name text;
    v_version bigint;
BEGIN
    SELECT app_name, version INTO v_app_name, v_version
      FROM {schema}.threads WHERE id = p_thread_id AND last_sequence = p_after FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.events (thread_id, sequence_num, id, app_name, invocation_id, author, event_type, content,
                                 actions, version, changes_state, created_at, write_number)
    SELECT p_thread_id, p_after + item.place, item.id, v_app_name, item.invocation_id, item.author, item.event_type,
           item.content::json, item.actions::json,
           v_version + count(*) FILTER (WHERE item.changes_state) OVER (ORDER BY item.place), item.changes_state,
           item.created_at, NULL -- it precedes every event that was written here
      FROM unnest(p_event_ids, p_invocation_ids, p_authors, p_event_types, p_contents, p_actions, p_changes_state,
                  p_times) WITH ORDINALITY
           AS item (id, invocation_id, author, event_type, content, actions, changes_state, created_at, place);
    INSERT INTO {schema}.messages (thread_id, sequence_num, id, event_id, app_name, role, content, created_at)
    SELECT p_thread_id, p_after + item.place, item.id, item.event_id, v_app_name, item.role, item.body, item.created_at
      FROM unnest(p_message_ids, p_event_ids, p_roles, p_texts, p_times) WITH ORDINALITY
           AS item (id, event_id, role, body, created_at, place)
     WHERE item.role IS NOT NULL;
    PERFORM {schema}.snapshot_initial_states(ARRAY[p_thread_id]);
    UPDATE {schema}.threads
       SET is_as_created = false,
           last_sequence = p_after + cardinality(p_event_ids),
           version = v_version + cardinality(array_positions(p_changes_state, true)),
           state = p_state,
           metadata = metadata || jsonb_build_object('imported_events', p_after + cardinality(p_event_ids)),
           began_at = p_created_at,
           began_number = NULL,
           created_at = p_created_at,
           updated_at = p_updated_at
     WHERE id = p_thread_id;
    RETURN true;
END
$$;
