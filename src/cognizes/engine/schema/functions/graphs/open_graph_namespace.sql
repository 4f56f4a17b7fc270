-- Return the id of a namespace of a graph's thread; create it if it does not exist.
-- The lock of the row lasts until the commit: a deletion of the thread waits for the writer or comes before it.
CREATE OR REPLACE FUNCTION {schema}.open_graph_namespace(p_app_name text, p_thread_id text, p_checkpoint_ns text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_id bigint;
BEGIN
    LOOP
        SELECT id INTO v_id FROM {schema}.graph_namespaces
         WHERE md5(thread_id) = md5(p_thread_id) AND app_name = p_app_name AND md5(checkpoint_ns) = md5(p_checkpoint_ns)
           AND thread_id = p_thread_id AND checkpoint_ns = p_checkpoint_ns
           FOR KEY SHARE;
        IF FOUND THEN
            RETURN v_id;
        END IF;
        INSERT INTO {schema}.graph_namespaces (app_name, thread_id, checkpoint_ns)
        VALUES (p_app_name, p_thread_id, p_checkpoint_ns)
        ON CONFLICT (md5(thread_id), app_name, md5(checkpoint_ns)) DO NOTHING
        RETURNING id INTO v_id;
        IF FOUND THEN
            RETURN v_id;
        END IF;
    END LOOP;
END
$$;
