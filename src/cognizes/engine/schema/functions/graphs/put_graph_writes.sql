-- Store what a task wrote after a checkpoint. Positions below zero are LangGraph's special channels; a later value of them
-- replaces the earlier one if `p_replaces`, otherwise the first value stays. With an attempt, the run must be held by it.
CREATE OR REPLACE FUNCTION {schema}.put_graph_writes(
    p_app_name text, p_thread_id text, p_checkpoint_ns text, p_checkpoint_id text, p_task_id text, p_task_path text,
    p_positions integer[], p_channels text[], p_types text[], p_values bytea[], p_replaces boolean,
    p_fence_thread_id uuid, p_fence_run_id text, p_fence_attempt integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_namespace_id bigint;
BEGIN
    PERFORM {schema}.check_fence(p_fence_thread_id, p_fence_run_id, p_fence_attempt);
    v_namespace_id := {schema}.open_graph_namespace(p_app_name, p_thread_id, p_checkpoint_ns);
    INSERT INTO {schema}.graph_writes AS w (
        namespace_id, checkpoint_id, task_id, position, task_path, app_name, channel, type, value)
    SELECT DISTINCT ON (new.position) v_namespace_id, p_checkpoint_id, p_task_id, new.position, p_task_path, p_app_name,
           new.channel, new.type, new.value
      FROM unnest(p_positions, p_channels, p_types, p_values) WITH ORDINALITY
           AS new (position, channel, type, value, place)
     ORDER BY new.position, CASE WHEN p_replaces THEN -new.place ELSE new.place END
    ON CONFLICT (namespace_id, checkpoint_id, task_id, position) DO UPDATE
       SET channel = excluded.channel, type = excluded.type, value = excluded.value
     WHERE p_replaces;
END
$$;
