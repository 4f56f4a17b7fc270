-- read_memory_sources: Read the events that a memory and its duplicates came from. `sequence_num` is null for an event that
-- is not stored, or was deleted.
WITH chosen AS (
    SELECT m.kind, m.session_id, m.source_id, m.sources FROM {schema}.memories m
     WHERE m.app_name = $1 AND m.user_id = $2 AND (m.id = $3 OR m.duplicate_of = $3)
), given AS (
    SELECT c.session_id, c.source_id AS event_id FROM chosen c WHERE c.kind = 'turn' AND c.session_id IS NOT NULL
    UNION
    SELECT s.value ->> 'session_id', s.value ->> 'event_id'
      FROM chosen c, jsonb_array_elements(coalesce(c.sources, '[]')) AS s
)
SELECT g.session_id, g.event_id, t.id AS thread_id, e.sequence_num
  FROM given g
  LEFT JOIN {schema}.threads t ON t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5(g.session_id)
                              AND t.session_id = g.session_id
  LEFT JOIN {schema}.events e ON e.thread_id = t.id AND md5(e.id) = md5(g.event_id) AND e.id = g.event_id
 ORDER BY g.session_id, e.sequence_num, g.event_id;

-- list_memories_of_event: List the memories that came from an event: the message itself, and facts and episodes.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at,
       tags, metadata::text AS metadata, importance, expires_at
  FROM {schema}.memories m
 WHERE m.id = ANY (ARRAY(SELECT unnest({schema}.memories_of_event($1, $2, $3, $4))
                          WHERE EXISTS (SELECT FROM {schema}.memory_scopes WHERE app_name = $1 AND user_id = $2)))
   AND m.app_name = $1 AND m.user_id = $2
 ORDER BY id;

-- read_texts_to_merge: Read the newest memories of a user of some kinds that are no duplicates and have not expired, for the
-- search for duplicates: the texts without those of more than $6 characters.
SELECT id, agent_id, kind, namespace, author, tags, metadata::text AS metadata, expires_at, revision, md5(text) AS hash,
       CASE WHEN length(text) <= $6 THEN text ELSE '' END AS text
  FROM {schema}.memories
 WHERE app_name = $1 AND user_id = $2 AND kind = ANY ($3) AND ($4::text IS NULL OR agent_id = $4) AND duplicate_of IS NULL
   AND (expires_at IS NULL OR expires_at > now())
 ORDER BY id DESC LIMIT $5;

-- merge_memories: Mark memories as duplicates of others.
SELECT {schema}.merge_memories($1, $2, $3, $4, $5, $6);

-- read_consolidated: Read how far a thread is consolidated for an agent.
SELECT last_sequence FROM {schema}.memory_consolidations WHERE thread_id = $1 AND agent_id = $2;

-- plan_consolidation: Record the last message of the batch that is processed next, unless a batch from $3 on is recorded
-- already; return the recorded one, and how far the thread is consolidated. Returns no row if the thread was deleted.
INSERT INTO {schema}.memory_consolidations AS c (thread_id, agent_id, app_name, last_sequence, planned_sequence)
SELECT t.id, $2, t.app_name, $3, $4 FROM {schema}.threads t WHERE t.id = $1
ON CONFLICT (thread_id, agent_id) DO UPDATE
   SET planned_sequence = CASE WHEN c.last_sequence > $3 OR c.planned_sequence > $3 THEN c.planned_sequence
                               ELSE excluded.planned_sequence END
RETURNING last_sequence, planned_sequence;

-- store_consolidated: Record how far a thread is consolidated for an agent; never moves backwards.
INSERT INTO {schema}.memory_consolidations AS c (thread_id, agent_id, app_name, last_sequence)
SELECT t.id, $2, t.app_name, $3 FROM {schema}.threads t WHERE t.id = $1
ON CONFLICT (thread_id, agent_id) DO UPDATE SET last_sequence = excluded.last_sequence, updated_at = clock_timestamp()
 WHERE c.last_sequence < excluded.last_sequence
RETURNING last_sequence;

-- find_waiting_consolidation: Find a run that waits for its first attempt and consolidates a session for an agent.
-- A later attempt consolidates the messages that the session had at the first one.
SELECT id FROM {schema}.runs
 WHERE thread_id = $1 AND status = 'pending' AND attempt = 0 AND handler = $2 AND input ->> 'session_id' = $3
   AND input ->> 'agent_id' IS NOT DISTINCT FROM $4
 ORDER BY created_at LIMIT 1;
