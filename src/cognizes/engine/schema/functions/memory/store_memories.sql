-- Store new and changed memories of one user, and queue those with another text for embedding. An equal memory is not
-- changed. An item without details keeps those that are stored. Forgotten messages are not stored again, nor are memories of a deleted session; of a session that was deleted
-- and created again, only messages that it contains. Returns the number of new or changed memories.
CREATE OR REPLACE FUNCTION {schema}.store_memories(
    p_app_name text, p_user_id text, p_kind text, p_agent_ids text[], p_namespaces text[], p_source_ids text[],
    p_session_ids text[], p_positions bigint[], p_authors text[], p_texts text[], p_words text[], p_contents text[],
    p_created_at timestamptz[], p_embed boolean, p_details text[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql
-- The plan is cached, possibly while the tables are empty, and must suit large tables.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_stored bigint[];
BEGIN
    -- One writer of a user's memories at a time: two that store the same ones in another order would deadlock, and
    -- they share the row of the user's counts.
    PERFORM pg_advisory_xact_lock(hashtextextended('memory ' || p_app_name || chr(1) || p_user_id, 0));
    WITH given AS (
        SELECT DISTINCT ON (agent_id, coalesce(session_id, ''), source_id) g.*
          FROM unnest(p_agent_ids, p_namespaces, p_source_ids, p_session_ids, p_positions, p_authors, p_texts, p_words,
                      p_contents, p_created_at, p_details) WITH ORDINALITY
               AS g (agent_id, namespace, source_id, session_id, position, author, text, words, content, created_at,
                     details, place)
         WHERE p_kind <> 'turn' OR NOT EXISTS (
               SELECT FROM {schema}.memory_deletions d
                WHERE d.app_name = p_app_name AND d.user_id = p_user_id
                  AND d.source = md5(concat_ws(chr(1), agent_id, coalesce(session_id, ''), source_id)))
         ORDER BY agent_id, coalesce(session_id, ''), source_id, place DESC
    ), deleted AS MATERIALIZED (
        SELECT sessions.session_id, t.id AS thread_id
          FROM (SELECT DISTINCT session_id FROM given WHERE session_id IS NOT NULL) sessions
          JOIN {schema}.memory_deletions d
            ON d.app_name = p_app_name AND d.source = md5(chr(1) || sessions.session_id)
           AND d.user_id = ANY (ARRAY[p_user_id, {schema}.erased_name(p_app_name, p_user_id)])
          LEFT JOIN {schema}.threads t
            ON t.app_name = p_app_name AND t.user_id = p_user_id AND md5(t.session_id) = md5(sessions.session_id)
           AND t.session_id = sessions.session_id
    ), ready AS MATERIALIZED (
        SELECT g.*, {schema}.memory_term_keys(p_app_name, p_user_id, g.words) AS terms,
               coalesce(d.tags, old.tags, '{}') AS tags, coalesce(d.metadata, old.metadata, '{}') AS metadata,
               coalesce(d.sources, old.sources) AS sources, coalesce(d.importance, old.importance) AS importance,
               coalesce(d.expires_at, old.expires_at) AS expires_at, old.created_at AS old_created_at,
               old.id AS old_id, (old.text, old.author) IS NOT DISTINCT FROM (g.text, g.author) AS is_same
          FROM given g
         CROSS JOIN LATERAL jsonb_populate_record(NULL::{schema}.memory_details, g.details::jsonb) d
          LEFT JOIN {schema}.memories old
            ON old.app_name = p_app_name AND old.user_id = p_user_id AND old.kind = p_kind
           AND old.agent_id = g.agent_id AND md5(coalesce(old.session_id, '')) = md5(coalesce(g.session_id, ''))
           AND md5(old.source_id) = md5(g.source_id)
         WHERE NOT EXISTS (
               SELECT FROM deleted d
                WHERE d.session_id = g.session_id
                  AND (d.thread_id IS NULL
                       OR p_kind = 'turn'
                      AND NOT EXISTS (SELECT FROM {schema}.events e
                                       WHERE e.thread_id = d.thread_id AND md5(e.id) = md5(g.source_id))))
    ), stored AS (
        INSERT INTO {schema}.memories AS m (app_name, user_id, agent_id, kind, namespace, source_id, session_id,
                                            position, author, text, terms, length, content, created_at, tags,
                                            metadata, sources, importance, expires_at, labels)
        SELECT p_app_name, p_user_id, agent_id, p_kind, namespace, source_id, session_id, position, author, text,
               terms, cardinality(terms), content::json,
               coalesce(created_at, old_created_at, clock_timestamp()), tags, metadata, sources,
               importance, expires_at, {schema}.memory_labels(p_app_name, p_user_id, tags, metadata, sources)
          FROM ready
         ORDER BY place
        ON CONFLICT (app_name, user_id, kind, agent_id, md5(coalesce(session_id, '')), md5(source_id)) DO UPDATE
           SET text = excluded.text, terms = excluded.terms, length = excluded.length, content = excluded.content,
               author = excluded.author, position = excluded.position, created_at = excluded.created_at,
               namespace = excluded.namespace, tags = excluded.tags, metadata = excluded.metadata,
               sources = excluded.sources, importance = excluded.importance, expires_at = excluded.expires_at,
               labels = excluded.labels, revision = m.revision + 1, duplicate_of = NULL
         WHERE (m.text, m.author, m.content::text, m.terms, m.tags, m.metadata, m.sources, m.importance, m.expires_at,
                m.namespace, m.position, m.created_at)
               IS DISTINCT FROM (excluded.text, excluded.author, excluded.content::text, excluded.terms, excluded.tags,
                                 excluded.metadata, excluded.sources, excluded.importance, excluded.expires_at,
                                 excluded.namespace, excluded.position, excluded.created_at)
        RETURNING m.id
    ), stale AS (
        DELETE FROM {schema}.memory_vectors v USING stored
         WHERE v.app_name = p_app_name AND v.user_id = p_user_id AND v.memory_id = stored.id
           AND NOT EXISTS (SELECT FROM ready WHERE ready.old_id = stored.id AND ready.is_same)
    ), queued AS (
        INSERT INTO {schema}.memory_embedding_queue (app_name, user_id, memory_id)
        SELECT p_app_name, p_user_id, stored.id FROM stored
         WHERE p_embed
           AND NOT EXISTS (SELECT FROM ready
                             JOIN {schema}.memory_vectors v
                               ON v.app_name = p_app_name AND v.user_id = p_user_id AND v.memory_id = ready.old_id
                            WHERE ready.old_id = stored.id AND ready.is_same)
        ON CONFLICT (app_name, user_id, memory_id)
           DO UPDATE SET attempts = 0, due_at = clock_timestamp(), is_parked = false, error = NULL
    )
    SELECT coalesce(array_agg(id), '{}') INTO v_stored FROM stored;
    -- What a memory stood for, it may not stand for any more.
    UPDATE {schema}.memories SET duplicate_of = NULL
     WHERE app_name = p_app_name AND user_id = p_user_id AND duplicate_of = ANY (v_stored);
    IF p_details IS NOT NULL THEN
        DELETE FROM {schema}.memory_metadata
         WHERE app_name = p_app_name AND user_id = p_user_id AND memory_id = ANY (v_stored);
        INSERT INTO {schema}.memory_metadata (app_name, user_id, memory_id, name, number, text)
        SELECT p_app_name, p_user_id, m.id, entry.key,
               CASE jsonb_typeof(entry.value) WHEN 'number' THEN (entry.value #>> '{}')::numeric END,
               CASE jsonb_typeof(entry.value) WHEN 'string' THEN entry.value #>> '{}' END
          FROM {schema}.memories m, jsonb_each(m.metadata) AS entry
         WHERE m.app_name = p_app_name AND m.user_id = p_user_id AND m.id = ANY (v_stored)
           AND jsonb_typeof(entry.value) IN ('number', 'string');
    END IF;
    RETURN cardinality(v_stored);
END
$$;
