-- Delete the bytes of deleted artifacts that no other artifact refers to: those in the database now, those of a store by
-- the sweep. Forks of a session share blobs. The row locks order deletions of two artifacts of one blob: the later one sees
-- that the earlier artifact is gone.
CREATE OR REPLACE FUNCTION {schema}.release_artifact_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM {schema}.artifact_blobs b WHERE b.id IN (SELECT blob_id FROM gone) ORDER BY b.id FOR UPDATE;
    DELETE FROM {schema}.artifact_blobs b
     WHERE b.id IN (SELECT blob_id FROM gone) AND b.store IS NULL
       AND NOT EXISTS (SELECT FROM {schema}.artifacts a WHERE a.blob_id = b.id);
    UPDATE {schema}.artifact_blobs b SET delete_after = clock_timestamp()
     WHERE b.id IN (SELECT blob_id FROM gone) AND b.store IS NOT NULL
       AND NOT EXISTS (SELECT FROM {schema}.artifacts a WHERE a.blob_id = b.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER release_artifact_blobs AFTER DELETE ON {schema}.artifacts
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {schema}.release_artifact_blobs();
