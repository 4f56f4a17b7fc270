-- What memories are filtered by, and what upkeep records about them. `labels` are index keys of tags, metadata and sources:
-- hashes that contain the user, as in `terms`, so a posting list never holds rows of two users.
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS tags text[] NOT NULL DEFAULT '{}';
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS metadata jsonb NOT NULL DEFAULT '{}';
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS labels bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS sources jsonb;
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS importance real CHECK (importance BETWEEN 0 AND 1);
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS expires_at timestamptz;
ALTER TABLE {schema}.memories ADD COLUMN IF NOT EXISTS duplicate_of bigint;

COMMENT ON COLUMN {schema}.memories.labels IS 'Index keys of tags, metadata and sources (memory_labels).';
COMMENT ON COLUMN {schema}.memories.sources IS 'The events that a fact or an episode came from: [{"session_id", "event_id"}].';
COMMENT ON COLUMN {schema}.memories.duplicate_of IS 'The memory that recall returns in place of this one.';

CREATE INDEX IF NOT EXISTS idx_memories_labels ON {schema}.memories USING gin (labels) WITH (fastupdate = off)
    WHERE labels <> '{}';
-- These do not begin with the user: on a table without statistics the planner would take them in place of the primary key.
CREATE INDEX IF NOT EXISTS idx_memories_kind ON {schema}.memories (kind, app_name, user_id, created_at);
CREATE INDEX IF NOT EXISTS idx_memories_namespace ON {schema}.memories (md5(namespace), app_name, user_id, created_at)
    WHERE namespace <> '';
CREATE INDEX IF NOT EXISTS idx_memories_expires_at ON {schema}.memories (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_memories_duplicate_of ON {schema}.memories (duplicate_of, app_name, user_id)
    WHERE duplicate_of IS NOT NULL;

-- memory_metadata: the numbers and texts of `metadata`, for ranges. Texts are compared by code point, as by jsonpath.
CREATE TABLE IF NOT EXISTS {schema}.memory_metadata (
    app_name    text NOT NULL,
    user_id     text NOT NULL,
    memory_id   bigint NOT NULL,
    name        text NOT NULL,
    number      numeric,
    text        text COLLATE "C",
    PRIMARY KEY (memory_id, app_name, user_id, name),
    FOREIGN KEY (app_name, user_id, memory_id) REFERENCES {schema}.memories (app_name, user_id, id) ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS idx_memory_metadata_number ON {schema}.memory_metadata (name, app_name, user_id, number)
    INCLUDE (memory_id) WHERE number IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_memory_metadata_text ON {schema}.memory_metadata (name, app_name, user_id, text)
    INCLUDE (memory_id) WHERE text IS NOT NULL;

-- memory_filter: the filters of a recall; a null attribute matches everything. `ranges` has all ranges of metadata; of one of
-- them `range_name` and its lower and upper bound, for the index: numbers or texts, each of which may be null. memory_details: optional columns of a memory.
DO $$
BEGIN
    CREATE TYPE {schema}.memory_filter AS (
        agent_id text, kinds text[], namespace text, since timestamptz, until timestamptz, tags text[], metadata jsonb,
        ranges jsonpath,
        range_name text, range_numbers numeric[], range_texts text[]);
    CREATE TYPE {schema}.memory_details AS (
        tags text[], metadata jsonb, sources jsonb, importance real, expires_at timestamptz);
EXCEPTION WHEN duplicate_object THEN
    NULL;
END
$$;

-- Functions whose arguments or result columns change: PostgreSQL would refuse the new one, or keep both.
DROP FUNCTION IF EXISTS {schema}.memory_neighbours(
    text, text, text, text[], text, timestamptz, timestamptz, bigint[]);
DROP FUNCTION IF EXISTS {schema}.recall_by_words(
    text, text, text, text, text, text[], text, timestamptz, timestamptz, integer, boolean);
DROP FUNCTION IF EXISTS {schema}.recall_by_vector(
    text, text, text, integer, text, text, text[], text, timestamptz, timestamptz, integer, boolean, bigint[]);
DROP FUNCTION IF EXISTS {schema}.find_by_frequent_terms(
    text, text, bigint[], text, text[], text, timestamptz, timestamptz, integer, integer);
DROP FUNCTION IF EXISTS {schema}.store_memories(
    text, text, text, text[], text[], text[], text[], bigint[], text[], text[], text[], text[], timestamptz[], boolean);
DROP FUNCTION IF EXISTS {schema}.memory_passes(
    {schema}.memories, text, text[], text, timestamptz, timestamptz);
