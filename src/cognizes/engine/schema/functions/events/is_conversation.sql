-- Returns whether an event belongs to the conversation of an ADK session: events of ADK, which start with its mark, and of
-- other events messages and state changes. Events about runs do not, so they make no session stale.
-- The first bytes of the text are compared, not parsed: it may contain \u0000, which the JSON operators refuse. Spaces between
-- them do not count: an event may be typed in psql.
CREATE OR REPLACE FUNCTION {schema}.is_conversation(p_event_type text, p_changes_state boolean, p_content text)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_changes_state
        OR p_event_type IN ('user_message', 'assistant_message', 'system_message', 'message')
        OR left(p_content, 60) ~ '^\s*\{\s*"adk"\s*:'
$$;
