-- Sets the title (null: unchanged, empty: removed) and merges metadata (null: unchanged), with an event. Returns null if the
-- thread does not exist.
CREATE OR REPLACE FUNCTION {schema}.change_session(
    p_thread_id uuid, p_title text, p_metadata jsonb, p_event_id text, p_content json
) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.threads
       SET title = CASE WHEN p_title IS NULL THEN title ELSE nullif(p_title, '') END,
           metadata = CASE WHEN p_metadata IS NULL THEN metadata ELSE {schema}.merge_state(metadata, p_metadata) END,
           updated_at = clock_timestamp()
     WHERE id = p_thread_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.append_event(
        p_thread_id, p_event_id, NULL, '', 'system',
        CASE WHEN p_title IS NULL THEN 'metadata_updated' ELSE 'title_updated' END, p_content, '{}');
    RETURN p_thread_id;
END
$$;
