-- save_agent_state: Replace the working memory of an agent in a session. Stores nothing if the session was deleted.
INSERT INTO {schema}.agent_states AS s (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
SELECT $1, $2, $3, $4, (SELECT id FROM {schema}.threads
                         WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($4) AND session_id = $4),
       $5::text::jsonb, $6
 WHERE NOT {schema}.is_deleted_session($1, $2, $4)
ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
   DO UPDATE SET payload = excluded.payload, thread_id = excluded.thread_id, updated_at = excluded.updated_at
RETURNING true;

-- write_scratchpad: Replace only the scratchpad; store the whole document if there is no working memory. Refuses an
-- attempt that does not hold the lease of its run.
INSERT INTO {schema}.agent_states AS s (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
SELECT $1, $2, $3, $4, (SELECT id FROM {schema}.threads
                         WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($4) AND session_id = $4),
       $5::text::jsonb, $6
  FROM {schema}.check_fence($7, $8, $9)
 WHERE NOT {schema}.is_deleted_session($1, $2, $4)
ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
   DO UPDATE SET payload = s.payload || jsonb_build_object('scratchpad', excluded.payload -> 'scratchpad',
                                                           'updated_at', excluded.payload -> 'updated_at'),
                 updated_at = excluded.updated_at
RETURNING true;

-- read_agent_state: Read the working memory of an agent in a session.
SELECT payload::text FROM {schema}.agent_states
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(session_id) = md5($4);

-- delete_agent_state: Delete the working memory of an agent in a session.
DELETE FROM {schema}.agent_states
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(session_id) = md5($4) RETURNING true;

-- read_working_memory: Read the inputs of a working memory in one snapshot: the newest messages of the thread, the tool
-- calls of its runs, its state and the agent's scratchpad.
SELECT t.session_id, t.app_name, t.user_id, t.version, t.last_sequence, t.updated_at, t.state::text AS state,
       (SELECT payload -> 'scratchpad' FROM {schema}.agent_states s
         WHERE s.app_name = t.app_name AND s.user_id = t.user_id AND s.agent_id = $2
           AND md5(s.session_id) = md5(t.session_id))::text AS scratchpad,
       (SELECT json_agg(json_build_object('id', m.id, 'role', m.role, 'content', m.content, 'at', m.created_at,
                                          'sequence_num', m.sequence_num) ORDER BY m.sequence_num)
          FROM (SELECT * FROM {schema}.messages WHERE thread_id = t.id ORDER BY sequence_num DESC LIMIT $3) m
       )::text AS messages,
       (SELECT jsonb_agg(jsonb_build_object('tool_name', call.entry -> 'tool_name', 'input', call.entry -> 'input',
                                            'output', call.entry -> 'output', 'at', call.entry -> 'at')
                         ORDER BY r.created_at, r.id, call.place)
          FROM {schema}.runs r, jsonb_array_elements(r.tool_calls) WITH ORDINALITY AS call (entry, place)
         WHERE r.thread_id = t.id)::text AS tool_calls
  FROM {schema}.threads t
 WHERE t.id = $1;

-- apply_memory_snapshot: Restore the variables of a thread and the working memory of an agent from a snapshot, once.
-- Refuses an attempt that does not hold the lease of its run.
SELECT status, version, content
  FROM {schema}.apply_memory_snapshot($1, $2, $3, $4::text::json, $5::text::jsonb, $6::text::jsonb, $7, $8, $9, $10);

-- set_long_term: Set a key.
SELECT namespace, key, value::text AS value, text, created_at, updated_at
  FROM {schema}.set_long_term_memory($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11::text::jsonb, $12);

-- get_long_term_as_of: Read the value that a key had at a time.
SELECT namespace, key, value::text AS value, text, created_at, updated_at FROM {schema}.agent_long_term_memory
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(namespace) = md5($4) AND md5(key) = md5($5)
   AND coalesce(valid_from, updated_at) <= $6
UNION ALL
SELECT namespace, key, value::text, text, valid_from, valid_from FROM {schema}.agent_long_term_history
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(namespace) = md5($4) AND md5(key) = md5($5)
   AND valid_from <= $6 AND valid_until > $6
 LIMIT 1;

-- list_fact_history: List the values of a key, newest first: the current one and those that it replaced.
SELECT value::text AS value, text, coalesce(valid_from, updated_at) AS valid_from, NULL::timestamptz AS valid_until,
       sources::text AS sources
  FROM {schema}.agent_long_term_memory
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(namespace) = md5($4) AND md5(key) = md5($5)
UNION ALL
SELECT value::text, text, valid_from, valid_until, sources::text FROM {schema}.agent_long_term_history
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(namespace) = md5($4) AND md5(key) = md5($5)
 ORDER BY valid_from DESC LIMIT $6;

-- get_long_term: Read one key.
SELECT namespace, key, value::text AS value, text, created_at, updated_at FROM {schema}.agent_long_term_memory
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(namespace) = md5($4) AND md5(key) = md5($5);

-- get_many_long_term: Read several keys, in the order of the arguments.
SELECT l.namespace, l.key, l.value::text AS value, l.text, l.created_at, l.updated_at
  FROM unnest($4::text[], $5::text[]) WITH ORDINALITY AS wanted (namespace, key, place)
  JOIN {schema}.agent_long_term_memory l
    ON l.app_name = $1 AND l.user_id = $2 AND l.agent_id = $3
   AND md5(l.namespace) = md5(wanted.namespace) AND md5(l.key) = md5(wanted.key)
 ORDER BY wanted.place;

-- delete_long_term: Delete a key.
SELECT {schema}.delete_long_term_memory($1, $2, $3, $4, $5);

-- list_long_term: List facts, last changed first, with an offset; a null namespace means all. Returns at most the given
-- number of bytes, or one larger row; null means no limit. `found` counts the rows before that limit.
SELECT namespace, key, value::text AS value, text, created_at, updated_at, found
  FROM (SELECT listed.*, row_number() OVER newest AS place, count(*) OVER () AS found, sum(size.bytes) OVER newest AS total
          FROM (SELECT namespace, key, value, text, created_at, updated_at FROM {schema}.agent_long_term_memory
                 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND ($4::text IS NULL OR namespace = $4)
                 ORDER BY updated_at DESC, namespace, key LIMIT $5 OFFSET $6) listed
         CROSS JOIN LATERAL (SELECT octet_length(namespace) + octet_length(key) + octet_length(text)
                                    + CASE WHEN pg_column_compression(value) IS NULL THEN coalesce(pg_column_size(value), 0) ELSE octet_length(value::text) END AS bytes) size
        WINDOW newest AS (ORDER BY updated_at DESC, namespace, key)) fitting
 WHERE place = 1 OR $7::bigint IS NULL OR total <= $7
 ORDER BY place;

-- append_episode: Append an episode, once per id; null if it exists.
SELECT {schema}.append_episode($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11, $12, $13::text::jsonb);

-- read_episode: Read one episode.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at
  FROM {schema}.agent_episodic_chunks WHERE app_name = $1 AND user_id = $2 AND md5(id) = md5($3);

-- delete_episode: Delete one episode.
SELECT {schema}.delete_episode($1, $2, $3);

-- list_episodes_of_agent: List episodes, newest first, with an offset; limits and `found` as in list_long_term.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at, found
  FROM (SELECT listed.*, row_number() OVER newest AS place, count(*) OVER () AS found, sum(size.bytes) OVER newest AS total
          FROM (SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload, created_at
                  FROM {schema}.agent_episodic_chunks
                 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3
                 ORDER BY created_at DESC, id DESC LIMIT $4 OFFSET $5) listed
         CROSS JOIN LATERAL (SELECT octet_length(id) + octet_length(summary)
                                    + CASE WHEN pg_column_compression(payload) IS NULL THEN coalesce(pg_column_size(payload), 0) ELSE octet_length(payload::text) END AS bytes) size
        WINDOW newest AS (ORDER BY created_at DESC, id DESC)) fitting
 WHERE place = 1 OR $6::bigint IS NULL OR total <= $6
 ORDER BY place;

-- list_episodes_of_session: List episodes, newest first, with an offset; limits and `found` as in list_long_term.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at, found
  FROM (SELECT listed.*, row_number() OVER newest AS place, count(*) OVER () AS found, sum(size.bytes) OVER newest AS total
          FROM (SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload, created_at
                  FROM {schema}.agent_episodic_chunks
                 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(session_id) = md5($4)
                 ORDER BY created_at DESC, id DESC LIMIT $5 OFFSET $6) listed
         CROSS JOIN LATERAL (SELECT octet_length(id) + octet_length(summary)
                                    + CASE WHEN pg_column_compression(payload) IS NULL THEN coalesce(pg_column_size(payload), 0) ELSE octet_length(payload::text) END AS bytes) size
        WINDOW newest AS (ORDER BY created_at DESC, id DESC)) fitting
 WHERE place = 1 OR $7::bigint IS NULL OR total <= $7
 ORDER BY place;

-- read_run_end: Read the inputs of an episode: status and error of the run, the question, the final answer and the tool
-- calls.
SELECT r.status, r.error, r.completed_at, r.started_at, r.created_at, r.tool_calls::text AS tool_calls, t.app_name,
       t.user_id, t.session_id, answer.content AS answer, answer.sequence_num AS answer_sequence,
       answer.event_id AS answer_event_id, question.content AS question, question.event_id AS question_event_id
  FROM {schema}.runs r
  JOIN {schema}.threads t ON t.id = r.thread_id
  LEFT JOIN LATERAL (
        SELECT m.content, m.sequence_num, m.event_id
          FROM {schema}.messages m
          JOIN {schema}.events e ON e.thread_id = m.thread_id AND e.sequence_num = m.sequence_num
         WHERE m.thread_id = r.thread_id AND m.role = 'assistant' AND m.content <> ''
           AND (e.run_id = r.id OR e.run_id IS NULL AND m.created_at >= coalesce(r.started_at, r.created_at)
                AND m.created_at <= coalesce(r.completed_at, 'infinity'))
         ORDER BY m.sequence_num DESC LIMIT 1) answer ON true
  LEFT JOIN LATERAL (
        SELECT m.content, m.event_id FROM {schema}.messages m
         WHERE m.thread_id = r.thread_id AND m.role = 'user'
           AND m.sequence_num <= coalesce(answer.sequence_num, t.last_sequence)
         ORDER BY m.sequence_num DESC LIMIT 1) question ON true
 WHERE r.thread_id = $1 AND r.id = $2;

-- store_memories: Store a batch of memories of one user in one transaction.
SELECT {schema}.store_memories($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15);

-- recall_by_words: Find the best memories of a user by BM25; none of a user that row level security hides.
SELECT * FROM {schema}.recall_by_words(
           $1, $2, $7, $8, jsonb_populate_record(NULL::{schema}.memory_filter, $3::text::jsonb), $5, $6, $4)
 WHERE EXISTS (SELECT FROM {schema}.memory_scopes WHERE app_name = $1 AND user_id = $2);

-- recall_by_vector: Find the memories of a user nearest to a vector, the cosines of the given ones, and the number of all
-- memories of the user.
SELECT *, (SELECT memories FROM {schema}.memory_scopes WHERE app_name = $1 AND user_id = $2) AS memories FROM {schema}.recall_by_vector(
           $1, $2, $7, $8, $9, jsonb_populate_record(NULL::{schema}.memory_filter, $3::text::jsonb), $5, $6, $4, $10);

-- select_memories: Return the ids of the memories that match a filter, if it selects few of many, else null; none of a user
-- that row level security hides.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}.memory_scopes WHERE app_name = $1 AND user_id = $2) THEN
           {schema}.select_memories($1, $2, jsonb_populate_record(NULL::{schema}.memory_filter, $3::text::jsonb), $4)
            ELSE '{}'::bigint[] END;

-- read_memory_neighbours: Read session, author and length of memories and of their neighbours in the session.
SELECT origin, session_id, id, distance, author, length, importance, created_at
  FROM {schema}.memory_neighbours($1, $2, jsonb_populate_record(NULL::{schema}.memory_filter, $3::text::jsonb), $4);

-- read_memories: Read memories by id, in the order of the ids: at most the given number of bytes, or one larger memory.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at,
       tags, metadata::text AS metadata, importance, expires_at
  FROM (SELECT m.id, agent_id, kind, namespace, source_id, session_id, author, text, content, created_at, tags,
               metadata, importance, expires_at,
               row_number() OVER best AS number, sum(size.bytes) OVER best AS total
          FROM unnest($3::bigint[]) WITH ORDINALITY AS wanted (id, place)
          JOIN {schema}.memories m ON m.id = wanted.id AND m.app_name = $1 AND m.user_id = $2
         CROSS JOIN LATERAL (SELECT octet_length(source_id) + octet_length(text)
                                    + CASE WHEN pg_column_compression(content) IS NULL THEN coalesce(pg_column_size(content), 0) ELSE octet_length(content::text) END AS bytes) size
        WINDOW best AS (ORDER BY wanted.place)) fitting
 WHERE number = 1 OR total <= $4;

-- list_memories: List memories with smaller ids than the given one, newest first; limits and `found` as in
-- list_long_term.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at,
       tags, metadata::text AS metadata, importance, expires_at, found
  FROM (SELECT listed.*, row_number() OVER newest AS place, count(*) OVER () AS found, sum(size.bytes) OVER newest AS total
          FROM (SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content, created_at, tags,
                       metadata, importance, expires_at
                  FROM {schema}.memories m
                 WHERE app_name = $1 AND user_id = $2 AND {schema}.memory_passes(
                           m, jsonb_populate_record(NULL::{schema}.memory_filter, $3::text::jsonb)) AND id < $5
                 ORDER BY id DESC LIMIT $4) listed
         CROSS JOIN LATERAL (SELECT octet_length(source_id) + octet_length(text)
                                    + CASE WHEN pg_column_compression(content) IS NULL THEN coalesce(pg_column_size(content), 0) ELSE octet_length(content::text) END AS bytes) size
        WINDOW newest AS (ORDER BY id DESC)) fitting
 WHERE place = 1 OR $6::bigint IS NULL OR total <= $6
 ORDER BY place;

-- forget_memory: Delete a memory and its fact or episode.
SELECT {schema}.forget_memory($1, $2, $3);

-- read_session_turns: Read the messages of a thread after a sequence number, as memories: at most $4 characters, or one
-- larger message.
SELECT m.event_id, m.sequence_num, m.role, m.content, m.created_at, e.author
  FROM (SELECT t.*, row_number() OVER oldest AS place, sum(length(t.content)) OVER oldest AS total
          FROM (SELECT event_id, thread_id, sequence_num, role, content, created_at FROM {schema}.messages
                 WHERE thread_id = $1 AND sequence_num > $2 AND role IN ('user', 'assistant') AND content <> ''
                 ORDER BY sequence_num LIMIT $3) t
        WINDOW oldest AS (ORDER BY t.sequence_num)) m
  JOIN {schema}.events e ON e.thread_id = m.thread_id AND e.sequence_num = m.sequence_num
 WHERE m.place = 1 OR m.total <= $4
 ORDER BY m.sequence_num;

-- read_context_state: Read the state of a thread and the scratchpad of an agent.
SELECT t.state::text AS state,
       (SELECT payload -> 'scratchpad' FROM {schema}.agent_states s
         WHERE s.app_name = t.app_name AND s.user_id = t.user_id AND s.agent_id = $2
           AND md5(s.session_id) = md5(t.session_id))::text AS scratchpad
  FROM {schema}.threads t
 WHERE t.id = $1;

-- read_recent_turns: Read the newest messages of a thread, newest first, each truncated to $3 characters; the first one
-- that exceeds this length with the newer ones is the last.
SELECT event_id, sequence_num, role, content, created_at
  FROM (SELECT t.*, sum(length(content)) OVER (ORDER BY sequence_num DESC) - length(content) AS newer
          FROM (SELECT event_id, sequence_num, role, left(content, $3) AS content, created_at FROM {schema}.messages
                 WHERE thread_id = $1 AND role IN ('user', 'assistant') AND content <> ''
                 ORDER BY sequence_num DESC LIMIT $2) t) fitting
 WHERE newer <= $3
 ORDER BY sequence_num DESC;

-- claim_embeddings: Claim queued memories, oldest first, with the first $3 characters of their texts. The claim expires.
WITH claimed AS (
    -- By ctid of the locked rows: a join by key would scan the whole queue for each batch.
    UPDATE {schema}.memory_embedding_queue q SET due_at = clock_timestamp() + $2::interval
     WHERE q.ctid = ANY (ARRAY(SELECT due.ctid FROM {schema}.memory_embedding_queue due
                                WHERE NOT due.is_parked AND due.due_at <= now()
                                ORDER BY due.due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING q.app_name, q.user_id, q.memory_id, q.attempts
)
SELECT claimed.*, left(m.text, $3) AS text, m.author, m.revision
  FROM claimed JOIN {schema}.memories m
    ON m.app_name = claimed.app_name AND m.user_id = claimed.user_id AND m.id = claimed.memory_id;

-- store_vectors: Store the vectors of memories that have not changed and remove them from the queue; return locked ones.
SELECT {schema}.store_vectors($1, $2, $3, $4, $5, $6);

-- postpone_embedding: Schedule a retry of a text that could not be embedded, or park it with the error.
UPDATE {schema}.memory_embedding_queue
   SET attempts = attempts + 1, error = $4, is_parked = attempts + 1 >= $5, due_at = clock_timestamp() + $6::interval
 WHERE app_name = $1 AND user_id = $2 AND memory_id = $3;

-- release_embeddings: Release claimed memories for another attempt.
UPDATE {schema}.memory_embedding_queue q SET due_at = clock_timestamp()
  FROM (SELECT app_name, user_id, memory_id FROM {schema}.memory_embedding_queue
         WHERE (app_name, user_id, memory_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]))
           FOR UPDATE SKIP LOCKED) given
 WHERE q.app_name = given.app_name AND q.user_id = given.user_id AND q.memory_id = given.memory_id;

-- count_embedding_queue: Count the queued and the parked memories.
SELECT count(*) FILTER (WHERE NOT is_parked) AS waiting, count(*) FILTER (WHERE is_parked) AS parked
  FROM {schema}.memory_embedding_queue;

-- list_parked_embeddings: List the memories that could not be embedded, with the errors.
SELECT app_name, user_id, memory_id, attempts, error FROM {schema}.memory_embedding_queue WHERE is_parked
 ORDER BY app_name, user_id, memory_id LIMIT $1;

-- queue_for_embedding: Queue the memories of a page, in the order of their keys, that have no vector of the model.
WITH page AS (
    SELECT m.app_name, m.user_id, m.id, m.duplicate_of IS NOT NULL AS is_duplicate FROM {schema}.memories m
     WHERE (m.app_name, m.user_id, m.id) > ($2, $3, $4)
     ORDER BY m.app_name, m.user_id, m.id LIMIT $5
), queued AS (
    INSERT INTO {schema}.memory_embedding_queue AS q (app_name, user_id, memory_id)
    SELECT p.app_name, p.user_id, p.id FROM page p
     WHERE NOT p.is_duplicate
       AND NOT EXISTS (SELECT FROM {schema}.memory_vectors v WHERE v.app_name = p.app_name AND v.user_id = p.user_id
                                                              AND v.memory_id = p.id AND v.model = $1)
    ON CONFLICT (app_name, user_id, memory_id)
       DO UPDATE SET is_parked = false, attempts = 0, due_at = clock_timestamp() WHERE q.is_parked
)
SELECT app_name, user_id, id FROM page ORDER BY app_name DESC, user_id DESC, id DESC LIMIT 1;

-- find_large_scopes: Find users with at least the given number of memories whose vectors are not all in the HNSW index.
SELECT app_name, user_id FROM {schema}.memory_scopes
 WHERE memories >= $1 AND (graph_model IS DISTINCT FROM $2 OR NOT graph_is_ready);

-- begin_vector_index: Put new vectors of a user into the HNSW index from now on.
UPDATE {schema}.memory_scopes SET graph_model = $3, graph_is_ready = false WHERE app_name = $1 AND user_id = $2;

-- move_into_vector_index: Move some older vectors of a user into the HNSW index.
WITH older AS (
    SELECT app_name, user_id, memory_id FROM {schema}.memory_vectors
     WHERE app_name = $1 AND user_id = $2 AND model = $3 AND NOT in_graph LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.memory_vectors v SET in_graph = true FROM older
 WHERE v.app_name = older.app_name AND v.user_id = older.user_id AND v.memory_id = older.memory_id RETURNING 1;

-- finish_vector_index: Mark the HNSW index as usable for a user if it contains all his vectors and is valid.
UPDATE {schema}.memory_scopes s SET graph_is_ready = true
 WHERE app_name = $1 AND user_id = $2 AND graph_model = $3
   AND NOT EXISTS (SELECT FROM {schema}.memory_vectors v WHERE v.app_name = s.app_name AND v.user_id = s.user_id
                                                          AND v.model = $3 AND NOT v.in_graph)
   AND EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($4) AND indisvalid)
RETURNING true;

-- describe_vector_index: Return the name of the HNSW index of a model and the statement that builds it.
SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON {schema}.memory_vectors USING hnsw '
              || '((embedding::halfvec(%s)) halfvec_cosine_ops) WHERE in_graph AND model = %L',
              'memory_vectors_graph_' || md5($1::text), $2::integer, $1::text) AS statement,
       format('%s.%I', '{schema}', 'memory_vectors_graph_' || md5($1::text)) AS name;

-- find_invalid_index: Return whether an interrupted build left an invalid index.
SELECT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = to_regclass($1) AND NOT i.indisvalid
                  AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid));

-- claim_episodes: Claim ended runs without an episode. The claim expires.
UPDATE {schema}.agent_episodes_due d SET due_at = clock_timestamp() + $2::interval, attempts = attempts + 1
  FROM (SELECT thread_id, run_id FROM {schema}.agent_episodes_due
         WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED) due
 WHERE d.thread_id = due.thread_id AND d.run_id = due.run_id
RETURNING d.thread_id, d.run_id, d.attempts;

-- finish_episode: Remove a run from the queue of episodes.
DELETE FROM {schema}.agent_episodes_due WHERE thread_id = $1 AND run_id = $2;

-- lease_message_index: Acquire or renew the lease of the message index; null while another process holds it.
INSERT INTO {schema}.maintenance_jobs AS m (name, last_run_at) VALUES ('index_messages', clock_timestamp() + $1::interval)
ON CONFLICT (name) DO UPDATE SET last_run_at = excluded.last_run_at
 WHERE m.last_run_at <= clock_timestamp() OR m.last_run_at = $2::timestamptz
RETURNING last_run_at;

-- read_waiting_messages: Read messages that are not indexed, newest first, truncated to the indexed length: at most $3
-- characters, or one larger message. `found` counts the rows before that limit.
SELECT thread_id, sequence_num, content, found
  FROM (SELECT waiting.*, count(*) OVER () AS found, row_number() OVER newest AS place, sum(length(content)) OVER newest AS total
          FROM (SELECT thread_id, sequence_num, created_at, left(content, $2) AS content FROM {schema}.messages
                 WHERE terms IS NULL AND content <> '' ORDER BY created_at DESC LIMIT $1) waiting
        WINDOW newest AS (ORDER BY created_at DESC, thread_id, sequence_num)) fitting
 WHERE place = 1 OR total <= $3
 ORDER BY place;

-- read_messages_without_vector: Read messages that are indexed only by words, newest first: at most $3
-- characters, or one larger message. `found` counts the rows before that limit.
SELECT thread_id, sequence_num, content, found
  FROM (SELECT waiting.*, count(*) OVER () AS found, row_number() OVER newest AS place, sum(length(content)) OVER newest AS total
          FROM (SELECT thread_id, sequence_num, created_at, left(content, $2) AS content FROM {schema}.messages
                 WHERE terms IS NOT NULL AND embedding_model IS NULL ORDER BY created_at DESC LIMIT $1) waiting
        WINDOW newest AS (ORDER BY created_at DESC, thread_id, sequence_num)) fitting
 WHERE place = 1 OR total <= $3
 ORDER BY place;

-- count_waiting_messages: Count the messages that are not indexed, and the indexed ones without a vector.
SELECT (SELECT count(*) FROM {schema}.messages WHERE terms IS NULL AND content <> '') AS waiting,
       (SELECT count(*) FROM {schema}.messages WHERE terms IS NOT NULL AND embedding_model IS NULL) AS without_vector;

-- index_messages: Store the words and vectors of messages.
SELECT {schema}.index_messages($1, $2, $3, $4, $5);

-- read_embedding_dimension: Read the dimension of the column of message vectors; -1 if it accepts any.
SELECT atttypmod FROM pg_attribute WHERE attrelid = '{schema}.messages'::regclass AND attname = 'embedding';

-- describe_message_index: Return the name of the HNSW index of message vectors of a model and the statement that builds
-- it.
SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON {schema}.messages USING hnsw '
              || '((embedding::halfvec(%s)) halfvec_cosine_ops) WHERE embedding_model = %L',
              'messages_graph_' || md5($1::text), $2::integer, $1::text) AS statement,
       format('%s.%I', '{schema}', 'messages_graph_' || md5($1::text)) AS name;

-- lacks_message_index: Return whether there are vectors of a model and no valid index of them.
SELECT EXISTS (SELECT FROM {schema}.messages WHERE embedding_model = $1)
       AND NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($2) AND indisvalid);

-- list_message_indexes: List the HNSW indexes of message vectors.
SELECT format('%s.%I', '{schema}', c.relname) AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = '{schema}.messages'::regclass AND starts_with(c.relname, 'messages_graph_');

-- describe_dimension_change: Return the statement that changes the dimension of message vectors and removes the
-- existing vectors.
SELECT format('ALTER TABLE {schema}.messages ALTER COLUMN embedding TYPE vector(%s) USING NULL', $1::integer);

-- reindex_messages: Queue the messages of a page, in the order of their keys, that have no vector of the model.
WITH page AS (
    SELECT m.thread_id, m.sequence_num,
           m.terms IS NOT NULL AND (m.embedding IS NULL OR m.embedding_model IS DISTINCT FROM $1) AS is_other
      FROM {schema}.messages m WHERE (m.thread_id, m.sequence_num) > ($2, $3)
     ORDER BY m.thread_id, m.sequence_num LIMIT $4
), waiting AS (
    UPDATE {schema}.messages m SET terms = NULL, embedding = NULL, embedding_model = NULL FROM page
     WHERE page.is_other AND m.thread_id = page.thread_id AND m.sequence_num = page.sequence_num
)
SELECT thread_id, sequence_num FROM page ORDER BY thread_id DESC, sequence_num DESC LIMIT 1;

-- find_messages_by_words: Find messages that contain words of a query; none of an app that row level security hides.
SELECT * FROM {schema}.find_messages_by_words($1, $2, $3, $8, $4, $5, $6, $7)
 WHERE EXISTS (SELECT FROM {schema}.threads WHERE app_name = $1);

-- find_messages_by_vector: Find the messages nearest to a vector.
SELECT * FROM {schema}.find_messages_by_vector($1, $2, $3, $8, $9, $10, $4, $5, $6, $7);

-- read_found_messages: Read messages of the app and the user by key, in the order of the keys: at most the given number
-- of bytes, or one larger message.
SELECT thread_id, sequence_num, id, event_id, role, content, metadata::text AS metadata, created_at, app_name, user_id,
       session_id
  FROM (SELECT m.thread_id, m.sequence_num, m.id, m.event_id, m.role, m.content, m.metadata, m.created_at, t.app_name,
               t.user_id, t.session_id, row_number() OVER best AS number, sum(size.bytes) OVER best AS total
          FROM unnest($3::uuid[], $4::bigint[]) WITH ORDINALITY AS wanted (thread_id, sequence_num, place)
          JOIN {schema}.messages m ON m.thread_id = wanted.thread_id AND m.sequence_num = wanted.sequence_num
          JOIN {schema}.threads t ON t.id = m.thread_id AND t.app_name = $1 AND ($2::text IS NULL OR t.user_id = $2)
         CROSS JOIN LATERAL (SELECT octet_length(m.content) + octet_length(m.id) + octet_length(m.event_id)
                                    + octet_length(t.session_id)
                                    + CASE WHEN pg_column_compression(m.metadata) IS NULL THEN coalesce(pg_column_size(m.metadata), 0) ELSE octet_length(m.metadata::text) END AS bytes) size
        WINDOW best AS (ORDER BY wanted.place)) fitting
 WHERE number = 1 OR total <= $5;
