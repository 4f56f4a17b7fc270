-- Store the next version of an artifact. Its bytes are `p_data`, or in a store under `p_blob_id`, whose row
-- `begin_artifact_upload` wrote. A call that is sent again returns the version that it stored before.
-- status: saved; deleted (the session); expired (the upload took too long, and its bytes may be deleted).
CREATE OR REPLACE FUNCTION {schema}.save_artifact(
    p_id uuid, p_app_name text, p_user_id text, p_session_id text, p_filename text, p_mime_type text, p_size bigint,
    p_sha256 bytea, p_metadata json, p_attributes json, p_blob_id uuid, p_data bytea,
    OUT status text, OUT version integer, OUT created_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT 'saved', a.version, a.created_at INTO status, save_artifact.version, save_artifact.created_at
      FROM {schema}.artifacts a WHERE a.id = p_id;
    IF FOUND THEN
        RETURN;
    END IF;
    IF p_session_id IS NOT NULL THEN
        -- The lock of `forget_threads`: a deletion of the session ends before this, or deletes this artifact too.
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
        IF {schema}.is_deleted_session(p_app_name, p_user_id, p_session_id) THEN
            status := 'deleted';
            RETURN;
        END IF;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(
        'artifact ' || p_app_name || chr(1) || p_user_id || chr(1) || coalesce(p_session_id, '') || chr(1) || p_filename, 0));
    IF p_data IS NOT NULL THEN
        INSERT INTO {schema}.artifact_blobs (id, app_name, data) VALUES (p_blob_id, p_app_name, p_data);
    ELSE
        UPDATE {schema}.artifact_blobs SET delete_after = NULL
         WHERE id = p_blob_id AND delete_after IS NOT NULL AND NOT is_deleting;
        IF NOT FOUND THEN
            status := 'expired';
            RETURN;
        END IF;
    END IF;
    INSERT INTO {schema}.artifacts (id, app_name, user_id, session_id, filename, version, blob_id, mime_type, size, sha256,
                                    metadata, attributes)
    VALUES (p_id, p_app_name, p_user_id, p_session_id, p_filename,
            (SELECT coalesce(max(a.version) + 1, 0) FROM {schema}.artifacts a
              WHERE a.app_name = p_app_name AND a.user_id = p_user_id
                AND md5(coalesce(a.session_id, '')) = md5(coalesce(p_session_id, ''))
                AND a.session_id IS NOT DISTINCT FROM p_session_id
                AND md5(a.filename) = md5(p_filename) AND a.filename = p_filename),
            p_blob_id, p_mime_type, p_size, p_sha256, p_metadata, p_attributes)
    RETURNING 'saved', artifacts.version, artifacts.created_at
         INTO status, save_artifact.version, save_artifact.created_at;
END
$$;

-- Announces bytes that are about to be written to a store. They are deleted after `p_keep` unless `save_artifact` uses them.
CREATE OR REPLACE FUNCTION {schema}.begin_artifact_upload(p_id uuid, p_app_name text, p_store text, p_keep interval)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.artifact_blobs (id, app_name, store, delete_after)
    VALUES (p_id, p_app_name, p_store, clock_timestamp() + p_keep)
$$;

-- Marks the bytes of an upload that failed for deletion.
CREATE OR REPLACE FUNCTION {schema}.abandon_artifact_upload(p_id uuid) RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.artifact_blobs SET delete_after = clock_timestamp() WHERE id = p_id AND delete_after IS NOT NULL
$$;
