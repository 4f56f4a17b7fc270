-- save_artifact: Store the next version of an artifact.
SELECT * FROM {schema}.save_artifact($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10::text::json, $11, $12);

-- begin_artifact_upload: Announce bytes that are about to be written to a store.
SELECT {schema}.begin_artifact_upload($1, $2, $3, $4);

-- abandon_artifact_upload: Mark the bytes of an upload that failed for deletion.
SELECT {schema}.abandon_artifact_upload($1);

-- find_artifact: Read a version of an artifact, the newest if the version is null; with its bytes if they are in the
-- database and `$6` is true.
SELECT a.id, a.session_id, a.filename, a.version, a.mime_type, a.size, a.sha256, a.metadata::text AS metadata,
       a.attributes::text AS attributes, a.created_at, a.blob_id, b.store, CASE WHEN $6 THEN b.data END AS data
  FROM {schema}.artifacts a
  JOIN {schema}.artifact_blobs b ON b.id = a.blob_id
 WHERE a.app_name = $1 AND a.user_id = $2 AND md5(coalesce(a.session_id, '')) = md5(coalesce($3, ''))
   AND a.session_id IS NOT DISTINCT FROM $3 AND md5(a.filename) = md5($4) AND a.filename = $4
   AND ($5::integer IS NULL OR a.version = $5)
 ORDER BY a.version DESC
 LIMIT 1;

-- read_artifact_bytes: Read a range of the bytes of a blob in the database.
SELECT substring(data FROM $2 FOR $3) AS data FROM {schema}.artifact_blobs WHERE id = $1 AND store IS NULL;

-- list_artifact_versions: Read the versions of an artifact, oldest first.
SELECT a.id, a.session_id, a.filename, a.version, a.mime_type, a.size, a.sha256, a.metadata::text AS metadata,
       a.attributes::text AS attributes, a.created_at, a.blob_id, b.store
  FROM {schema}.artifacts a
  JOIN {schema}.artifact_blobs b ON b.id = a.blob_id
 WHERE a.app_name = $1 AND a.user_id = $2 AND md5(coalesce(a.session_id, '')) = md5(coalesce($3, ''))
   AND a.session_id IS NOT DISTINCT FROM $3 AND md5(a.filename) = md5($4) AND a.filename = $4
 ORDER BY a.version;

-- list_artifacts: Read the newest versions of a session's and its user's artifacts, or with a null session of the user's
-- only, in the order of their scope and name, after a cursor.
SELECT DISTINCT ON (a.session_id IS NULL, a.filename COLLATE "C")
       a.id, a.session_id, a.filename, a.version, a.mime_type, a.size, a.sha256, a.metadata::text AS metadata,
       a.attributes::text AS attributes, a.created_at, a.blob_id, b.store
  FROM {schema}.artifacts a
  JOIN {schema}.artifact_blobs b ON b.id = a.blob_id
 WHERE a.app_name = $1 AND a.user_id = $2 AND md5(coalesce(a.session_id, '')) = ANY (ARRAY[md5(''), md5(coalesce($3, ''))])
   AND (a.session_id IS NULL OR a.session_id = $3)
   AND ($4::boolean IS NULL OR (a.session_id IS NULL, a.filename COLLATE "C") > ($4, $5 COLLATE "C"))
 ORDER BY a.session_id IS NULL, a.filename COLLATE "C", a.version DESC
 LIMIT $6;

-- list_artifact_keys: Read the names of a session's and its user's artifacts.
SELECT DISTINCT CASE WHEN session_id IS NULL THEN 'user:' ELSE '' END || filename AS key
  FROM {schema}.artifacts
 WHERE app_name = $1 AND user_id = $2 AND md5(coalesce(session_id, '')) = ANY (ARRAY[md5(''), md5(coalesce($3, ''))])
   AND (session_id IS NULL OR session_id = $3);

-- delete_artifact: Delete all versions of an artifact; a trigger deletes their bytes.
DELETE FROM {schema}.artifacts
 WHERE app_name = $1 AND user_id = $2 AND md5(coalesce(session_id, '')) = md5(coalesce($3, ''))
   AND session_id IS NOT DISTINCT FROM $3 AND md5(filename) = md5($4) AND filename = $4
RETURNING id;

-- claim_deleted_blobs: Claim blobs of a store whose bytes are to be deleted; a claim that is not finished is taken again
-- after some minutes.
UPDATE {schema}.artifact_blobs SET is_deleting = true, delete_after = clock_timestamp() + interval '5 minutes'
 WHERE id IN (SELECT id FROM {schema}.artifact_blobs
               WHERE delete_after <= clock_timestamp() AND store = $1
               ORDER BY delete_after LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING id;

-- remove_deleted_blobs: Remove the rows of blobs whose bytes are deleted.
DELETE FROM {schema}.artifact_blobs WHERE id = ANY ($1::uuid[]) AND is_deleting;
