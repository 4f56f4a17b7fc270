-- artifact_blobs: the bytes of artifacts. `store` is null if the bytes are in `data`, else the identity of the store that
-- has them under the blob's id. The row is written before the bytes and removed after them, so no bytes are lost sight of.
CREATE TABLE IF NOT EXISTS {schema}.artifact_blobs (
    id            uuid PRIMARY KEY,
    app_name      text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    store         text,
    data          bytea,
    delete_after  timestamptz,
    is_deleting   boolean NOT NULL DEFAULT false,
    CHECK ((store IS NULL) = (data IS NOT NULL))
);

-- Images, audio and archives are compressed already, and ranges of an uncompressed value are read by themselves.
ALTER TABLE {schema}.artifact_blobs ALTER COLUMN data SET STORAGE EXTERNAL;

COMMENT ON COLUMN {schema}.artifact_blobs.delete_after IS
    'When no artifact refers to the blob (its upload has not ended, or its artifacts are deleted): the bytes are deleted then.';

CREATE INDEX IF NOT EXISTS idx_artifact_blobs_delete_after
    ON {schema}.artifact_blobs (delete_after) WHERE delete_after IS NOT NULL;

-- artifacts: one row for each version of a file of a session, or of a user (`session_id` is null).
CREATE TABLE IF NOT EXISTS {schema}.artifacts (
    id          uuid PRIMARY KEY,
    app_name    text NOT NULL CHECK (octet_length(app_name) BETWEEN 1 AND 1000),
    user_id     text NOT NULL CHECK (octet_length(user_id) BETWEEN 1 AND 1000),
    session_id  text CHECK (session_id <> ''),
    filename    text NOT NULL CHECK (filename <> ''),
    version     integer NOT NULL,
    blob_id     uuid NOT NULL REFERENCES {schema}.artifact_blobs (id),
    mime_type   text,
    size        bigint NOT NULL,
    sha256      bytea NOT NULL,
    metadata    json NOT NULL DEFAULT '{}',
    attributes  json NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON COLUMN {schema}.artifacts.metadata IS 'Metadata of the caller.';
COMMENT ON COLUMN {schema}.artifacts.attributes IS 'What an adapter stores with the bytes, such as the form of an ADK part.';

CREATE UNIQUE INDEX IF NOT EXISTS artifacts_key
    ON {schema}.artifacts (app_name, user_id, md5(coalesce(session_id, '')), md5(filename), version);
CREATE INDEX IF NOT EXISTS idx_artifacts_blob_id ON {schema}.artifacts (blob_id);
