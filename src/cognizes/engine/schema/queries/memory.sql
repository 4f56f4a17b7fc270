-- save_agent_state: Replaces an agent's working memory of a session; nothing of a session that was deleted.
INSERT INTO {schema}.agent_states AS s (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
SELECT $1, $2, $3, $4, (SELECT id FROM {schema}.threads
                         WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($4) AND session_id = $4),
       $5::text::jsonb, $6
 WHERE NOT {schema}.is_deleted_session($1, $2, $4)
ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
   DO UPDATE SET payload = excluded.payload, thread_id = excluded.thread_id, updated_at = excluded.updated_at
RETURNING true;

-- write_scratchpad: The same, for the scratchpad alone; the document is used whole when there is none yet. An attempt that
-- does not hold its run is refused.
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

-- read_agent_state: An agent's working memory of a session.
SELECT payload::text FROM {schema}.agent_states
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(session_id) = md5($4);

-- delete_agent_state: Forgets it.
DELETE FROM {schema}.agent_states
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(session_id) = md5($4) RETURNING true;

-- read_working_memory: A thread as a working memory shows it: its newest messages, its runs' tool calls, its
-- own state and the agent's scratchpad, all of one moment.
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

-- apply_memory_snapshot: Makes a thread's variables and the agent's working memory those of a snapshot, once; an attempt
-- that does not hold its run is refused.
SELECT status, version, content
  FROM {schema}.apply_memory_snapshot($1, $2, $3, $4::text::json, $5::text::jsonb, $6::text::jsonb, $7, $8, $9, $10);

-- set_long_term: Sets a key.
SELECT * FROM {schema}.set_long_term_memory($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9);

-- get_long_term: One key.
SELECT namespace, key, value::text AS value, text, created_at, updated_at FROM {schema}.agent_long_term_memory
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(namespace) = md5($4) AND md5(key) = md5($5);

-- get_many_long_term: Several keys, in the order asked for.
SELECT l.namespace, l.key, l.value::text AS value, l.text, l.created_at, l.updated_at
  FROM unnest($4::text[], $5::text[]) WITH ORDINALITY AS wanted (namespace, key, place)
  JOIN {schema}.agent_long_term_memory l
    ON l.app_name = $1 AND l.user_id = $2 AND l.agent_id = $3
   AND md5(l.namespace) = md5(wanted.namespace) AND md5(l.key) = md5(wanted.key)
 ORDER BY wanted.place;

-- delete_long_term: Removes a key.
SELECT {schema}.delete_long_term_memory($1, $2, $3, $4, $5);

-- list_long_term: Newest change first, after some; a null namespace means all. At most as many bytes as given, or one larger
-- row; null: no limit. `found` counts the rows before that limit.
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

-- append_episode: An episode, once per id; null when it was there already.
SELECT {schema}.append_episode($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11, $12);

-- read_episode: One episode.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at
  FROM {schema}.agent_episodic_chunks WHERE app_name = $1 AND user_id = $2 AND md5(id) = md5($3);

-- delete_episode: Removes one.
SELECT {schema}.delete_episode($1, $2, $3);

-- list_episodes_of_agent: Newest first, after some; limits and `found` as in list_long_term.
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

-- list_episodes_of_session: Newest first, after some; limits and `found` as in list_long_term.
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

-- read_run_end: What an episode of a run is made of: how it ended, what was asked, what was answered last.
SELECT r.status, r.error, r.completed_at, r.started_at, r.created_at, r.tool_calls::text AS tool_calls, t.app_name,
       t.user_id, t.session_id, answer.content AS answer, answer.sequence_num AS answer_sequence,
       (SELECT m.content FROM {schema}.messages m
         WHERE m.thread_id = r.thread_id AND m.role = 'user'
           AND m.sequence_num <= coalesce(answer.sequence_num, t.last_sequence)
         ORDER BY m.sequence_num DESC LIMIT 1) AS question
  FROM {schema}.runs r
  JOIN {schema}.threads t ON t.id = r.thread_id
  LEFT JOIN LATERAL (
        SELECT m.content, m.sequence_num
          FROM {schema}.messages m
          JOIN {schema}.events e ON e.thread_id = m.thread_id AND e.sequence_num = m.sequence_num
         WHERE m.thread_id = r.thread_id AND m.role = 'assistant' AND m.content <> ''
           AND (e.run_id = r.id OR e.run_id IS NULL AND m.created_at >= coalesce(r.started_at, r.created_at)
                AND m.created_at <= coalesce(r.completed_at, 'infinity'))
         ORDER BY m.sequence_num DESC LIMIT 1) answer ON true
 WHERE r.thread_id = $1 AND r.id = $2;

-- store_memories: A batch of memories of one user, one transaction.
SELECT {schema}.store_memories($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- recall_by_words: The best memories of a user by BM25; none of one whom row level security hides.
SELECT * FROM {schema}.recall_by_words($1, $2, $10, $11, $3, $4, $5, $6, $7, $8, $9)
 WHERE EXISTS (SELECT FROM {schema}.memory_scopes WHERE app_name = $1 AND user_id = $2);

-- recall_by_vector: The memories of a user nearest to a vector.
SELECT * FROM {schema}.recall_by_vector($1, $2, $10, $11, $12, $3, $4, $5, $6, $7, $8, $9);

-- read_memory_neighbours: Who said a memory, in which session, and what stands before and after it there.
SELECT m.id, m.session_id, m.author, before.id AS previous_id, before.author AS previous_author, after.id AS next_id,
       after.author AS next_author
  FROM unnest($8::bigint[]) AS wanted (id)
  JOIN {schema}.memories m ON m.app_name = $1 AND m.user_id = $2 AND m.id = wanted.id
  LEFT JOIN LATERAL (
        SELECT n.id, n.author FROM {schema}.memories n
         WHERE n.app_name = $1 AND n.user_id = $2 AND md5(n.session_id) = md5(m.session_id) AND n.session_id IS NOT NULL
           AND (n.position, n.id) < (m.position, m.id) AND n.kind = m.kind
           AND {schema}.memory_passes(n, $3, $4, $5, $6, $7)
         ORDER BY n.position DESC, n.id DESC LIMIT 1) before ON m.session_id IS NOT NULL
  LEFT JOIN LATERAL (
        SELECT n.id, n.author FROM {schema}.memories n
         WHERE n.app_name = $1 AND n.user_id = $2 AND md5(n.session_id) = md5(m.session_id) AND n.session_id IS NOT NULL
           AND (n.position, n.id) > (m.position, m.id) AND n.kind = m.kind
           AND {schema}.memory_passes(n, $3, $4, $5, $6, $7)
         ORDER BY n.position, n.id LIMIT 1) after ON m.session_id IS NOT NULL;

-- read_memories: Memories by their ids, in that order: at most as many bytes as given, or one larger memory.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at
  FROM (SELECT m.id, agent_id, kind, namespace, source_id, session_id, author, text, content, created_at,
               row_number() OVER best AS number, sum(size.bytes) OVER best AS total
          FROM unnest($3::bigint[]) WITH ORDINALITY AS wanted (id, place)
          JOIN {schema}.memories m ON m.id = wanted.id AND m.app_name = $1 AND m.user_id = $2
         CROSS JOIN LATERAL (SELECT octet_length(source_id) + octet_length(text)
                                    + CASE WHEN pg_column_compression(content) IS NULL THEN coalesce(pg_column_size(content), 0) ELSE octet_length(content::text) END AS bytes) size
        WINDOW best AS (ORDER BY wanted.place)) fitting
 WHERE number = 1 OR total <= $4;

-- list_memories: Newest first, those before an id: limits and `found` as in list_long_term.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at, found
  FROM (SELECT listed.*, row_number() OVER newest AS place, count(*) OVER () AS found, sum(size.bytes) OVER newest AS total
          FROM (SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content, created_at
                  FROM {schema}.memories m
                 WHERE app_name = $1 AND user_id = $2 AND {schema}.memory_passes(m, $3, $4, $5, $6, $7) AND id < $9
                 ORDER BY id DESC LIMIT $8) listed
         CROSS JOIN LATERAL (SELECT octet_length(source_id) + octet_length(text)
                                    + CASE WHEN pg_column_compression(content) IS NULL THEN coalesce(pg_column_size(content), 0) ELSE octet_length(content::text) END AS bytes) size
        WINDOW newest AS (ORDER BY id DESC)) fitting
 WHERE place = 1 OR $10::bigint IS NULL OR total <= $10
 ORDER BY place;

-- forget_memory: Deletes a memory and what it was made of.
SELECT {schema}.forget_memory($1, $2, $3);

-- read_session_turns: The messages of a thread as memories, after a sequence number.
SELECT m.event_id, m.sequence_num, m.role, m.content, m.created_at, e.author
  FROM {schema}.messages m
  JOIN {schema}.events e ON e.thread_id = m.thread_id AND e.sequence_num = m.sequence_num
 WHERE m.thread_id = $1 AND m.sequence_num > $2 AND m.role IN ('user', 'assistant') AND m.content <> ''
 ORDER BY m.sequence_num LIMIT $3;

-- claim_embeddings: Memories that wait for a vector, longest first. The claim runs out by itself.
WITH claimed AS (
    -- By their places, which are locked: found by their keys, all of a long queue would be read for every batch.
    UPDATE {schema}.memory_embedding_queue q SET due_at = clock_timestamp() + $2::interval
     WHERE q.ctid = ANY (ARRAY(SELECT due.ctid FROM {schema}.memory_embedding_queue due
                                WHERE NOT due.is_parked AND due.due_at <= now()
                                ORDER BY due.due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING q.app_name, q.user_id, q.memory_id, q.attempts
)
SELECT claimed.*, m.text, m.author, m.revision
  FROM claimed JOIN {schema}.memories m
    ON m.app_name = claimed.app_name AND m.user_id = claimed.user_id AND m.id = claimed.memory_id;

-- store_vectors: Vectors of memories that have not changed since; those leave the queue.
SELECT {schema}.store_vectors($1, $2, $3, $4, $5, $6);

-- postpone_embedding: A text that could not be embedded: later again, or never, with the reason.
UPDATE {schema}.memory_embedding_queue
   SET attempts = attempts + 1, error = $4, is_parked = attempts + 1 >= $5, due_at = clock_timestamp() + $6::interval
 WHERE app_name = $1 AND user_id = $2 AND memory_id = $3;

-- release_embeddings: Gives claimed memories back: the embedder is away, they are not to blame.
UPDATE {schema}.memory_embedding_queue q SET due_at = clock_timestamp()
  FROM (SELECT app_name, user_id, memory_id FROM {schema}.memory_embedding_queue
         WHERE (app_name, user_id, memory_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]))
           FOR UPDATE SKIP LOCKED) given
 WHERE q.app_name = given.app_name AND q.user_id = given.user_id AND q.memory_id = given.memory_id;

-- count_embedding_queue: How many wait, and how many are parked.
SELECT count(*) FILTER (WHERE NOT is_parked) AS waiting, count(*) FILTER (WHERE is_parked) AS parked
  FROM {schema}.memory_embedding_queue;

-- list_parked_embeddings: What could not be embedded, and why.
SELECT app_name, user_id, memory_id, attempts, error FROM {schema}.memory_embedding_queue WHERE is_parked
 ORDER BY app_name, user_id, memory_id LIMIT $1;

-- queue_for_embedding: A page of memories in the order of their keys; those without a vector of the model are queued.
WITH page AS (
    SELECT m.app_name, m.user_id, m.id FROM {schema}.memories m
     WHERE (m.app_name, m.user_id, m.id) > ($2, $3, $4)
     ORDER BY m.app_name, m.user_id, m.id LIMIT $5
), queued AS (
    INSERT INTO {schema}.memory_embedding_queue AS q (app_name, user_id, memory_id)
    SELECT p.app_name, p.user_id, p.id FROM page p
     WHERE NOT EXISTS (SELECT FROM {schema}.memory_vectors v WHERE v.app_name = p.app_name AND v.user_id = p.user_id
                                                              AND v.memory_id = p.id AND v.model = $1)
    ON CONFLICT (app_name, user_id, memory_id)
       DO UPDATE SET is_parked = false, attempts = 0, due_at = clock_timestamp() WHERE q.is_parked
)
SELECT app_name, user_id, id FROM page ORDER BY app_name DESC, user_id DESC, id DESC LIMIT 1;

-- find_crowded_scopes: Users whose memories are so many that their vectors belong into the graph, and are not all there.
SELECT app_name, user_id FROM {schema}.memory_scopes
 WHERE memories >= $1 AND (graph_model IS DISTINCT FROM $2 OR NOT graph_is_ready);

-- begin_graph: From now on new vectors of a user go into the graph.
UPDATE {schema}.memory_scopes SET graph_model = $3, graph_is_ready = false WHERE app_name = $1 AND user_id = $2;

-- move_into_graph: Some older vectors of a user follow.
WITH older AS (
    SELECT app_name, user_id, memory_id FROM {schema}.memory_vectors
     WHERE app_name = $1 AND user_id = $2 AND model = $3 AND NOT in_graph LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.memory_vectors v SET in_graph = true FROM older
 WHERE v.app_name = older.app_name AND v.user_id = older.user_id AND v.memory_id = older.memory_id RETURNING 1;

-- finish_graph: All vectors of a user are in the graph, and the graph can be walked.
UPDATE {schema}.memory_scopes s SET graph_is_ready = true
 WHERE app_name = $1 AND user_id = $2 AND graph_model = $3
   AND NOT EXISTS (SELECT FROM {schema}.memory_vectors v WHERE v.app_name = s.app_name AND v.user_id = s.user_id
                                                          AND v.model = $3 AND NOT v.in_graph)
   AND EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($4) AND indisvalid)
RETURNING true;

-- describe_graph: The statement that builds a model's graph, and the name of the graph.
SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON {schema}.memory_vectors USING hnsw '
              || '((embedding::halfvec(%s)) halfvec_cosine_ops) WHERE in_graph AND model = %L',
              'memory_vectors_graph_' || md5($1::text), $2::integer, $1::text) AS statement,
       format('%s.%I', '{schema}', 'memory_vectors_graph_' || md5($1::text)) AS name;

-- find_broken_graph: Whether a build of the graph was interrupted: what is there is no use.
SELECT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = to_regclass($1) AND NOT i.indisvalid
                  AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid));

-- claim_episodes: Runs that ended and have no episode yet. The claim runs out by itself.
UPDATE {schema}.agent_episodes_due d SET due_at = clock_timestamp() + $2::interval, attempts = attempts + 1
  FROM (SELECT thread_id, run_id FROM {schema}.agent_episodes_due
         WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED) due
 WHERE d.thread_id = due.thread_id AND d.run_id = due.run_id
RETURNING d.thread_id, d.run_id, d.attempts;

-- finish_episode: The episode is written, or will never be.
DELETE FROM {schema}.agent_episodes_due WHERE thread_id = $1 AND run_id = $2;

-- lease_message_index: One process at a time indexes messages: null while another one holds the lease.
INSERT INTO {schema}.maintenance_jobs AS m (name, last_run_at) VALUES ('index_messages', clock_timestamp() + $1::interval)
ON CONFLICT (name) DO UPDATE SET last_run_at = excluded.last_run_at
 WHERE m.last_run_at <= clock_timestamp() OR m.last_run_at = $2::timestamptz
RETURNING last_run_at;

-- read_waiting_messages: Messages that are not indexed yet, newest first, as much of them as is indexed.
SELECT thread_id, sequence_num, left(content, $2) AS content FROM {schema}.messages
 WHERE terms IS NULL AND content <> '' ORDER BY created_at DESC LIMIT $1;

-- read_messages_without_vector: Messages that are indexed by their words alone, newest first.
SELECT thread_id, sequence_num, left(content, $2) AS content FROM {schema}.messages
 WHERE terms IS NOT NULL AND embedding_model IS NULL ORDER BY created_at DESC LIMIT $1;

-- count_waiting_messages: How many messages are not indexed yet, and how many of the others have no vector.
SELECT (SELECT count(*) FROM {schema}.messages WHERE terms IS NULL AND content <> '') AS waiting,
       (SELECT count(*) FROM {schema}.messages WHERE terms IS NOT NULL AND embedding_model IS NULL) AS without_vector;

-- index_messages: The words and vectors of messages.
SELECT {schema}.index_messages($1, $2, $3, $4, $5);

-- read_embedding_dimension: Of the messages' vectors; -1 when the column takes any.
SELECT atttypmod FROM pg_attribute WHERE attrelid = '{schema}.messages'::regclass AND attname = 'embedding';

-- describe_message_graph: The statement that builds the graph of the messages' vectors, and the name of the graph.
SELECT format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON {schema}.messages USING hnsw '
              || '((embedding::halfvec(%s)) halfvec_cosine_ops) WHERE embedding_model = %L',
              'messages_graph_' || md5($1::text), $2::integer, $1::text) AS statement,
       format('%s.%I', '{schema}', 'messages_graph_' || md5($1::text)) AS name;

-- lacks_message_graph: Whether there are vectors of a model, and no graph of them that can be walked.
SELECT EXISTS (SELECT FROM {schema}.messages WHERE embedding_model = $1)
       AND NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($2) AND indisvalid);

-- list_message_graphs: All graphs of the messages' vectors.
SELECT format('%s.%I', '{schema}', c.relname) AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = '{schema}.messages'::regclass AND starts_with(c.relname, 'messages_graph_');

-- describe_dimension_change: The statement that makes room for vectors of another dimension and removes the present ones.
SELECT format('ALTER TABLE {schema}.messages ALTER COLUMN embedding TYPE vector(%s) USING NULL', $1::integer);

-- reindex_messages: A page of messages in the order of their keys; those without a vector of the model wait again.
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

-- find_messages_by_words: Messages that hold words of a query; none of an app that row level security hides.
SELECT * FROM {schema}.find_messages_by_words($1, $2, $3, $8, $4, $5, $6, $7)
 WHERE EXISTS (SELECT FROM {schema}.threads WHERE app_name = $1);

-- find_messages_by_vector: Messages nearest to a vector.
SELECT * FROM {schema}.find_messages_by_vector($1, $2, $3, $8, $9, $10, $4, $5, $6, $7);

-- read_found_messages: Messages by their keys, those of the app and the user, in that order: at most as many bytes as given,
-- or one larger message.
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
