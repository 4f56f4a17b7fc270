-- save_agent_state: Replaces an agent's working memory of a session.
INSERT INTO {schema}.agent_states AS s (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
VALUES ($1, $2, $3, $4, (SELECT id FROM {schema}.threads
                          WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($4) AND session_id = $4),
        $5::text::jsonb, $6)
ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
   DO UPDATE SET payload = excluded.payload, thread_id = excluded.thread_id, updated_at = excluded.updated_at;

-- write_scratchpad: The same, for the scratchpad alone; the document is used whole when there is none yet.
INSERT INTO {schema}.agent_states AS s (app_name, user_id, agent_id, session_id, thread_id, payload, updated_at)
VALUES ($1, $2, $3, $4, (SELECT id FROM {schema}.threads
                          WHERE app_name = $1 AND user_id = $2 AND md5(session_id) = md5($4) AND session_id = $4),
        $5::text::jsonb, $6)
ON CONFLICT (app_name, user_id, agent_id, md5(session_id))
   DO UPDATE SET payload = s.payload || jsonb_build_object('scratchpad', excluded.payload -> 'scratchpad',
                                                           'updated_at', excluded.payload -> 'updated_at'),
                 updated_at = excluded.updated_at;

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

-- apply_memory_snapshot: Makes a thread's variables and the agent's working memory those of a snapshot, once.
SELECT {schema}.apply_memory_snapshot($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7, $8);

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

-- list_long_term: Newest change first; a null namespace means all.
SELECT namespace, key, value::text AS value, text, created_at, updated_at FROM {schema}.agent_long_term_memory
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND ($4::text IS NULL OR namespace = $4)
 ORDER BY updated_at DESC, namespace, key LIMIT $5;

-- append_episode: An episode, once per id; null when it was there already.
SELECT {schema}.append_episode($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11, $12);

-- read_episode: One episode.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at
  FROM {schema}.agent_episodic_chunks WHERE app_name = $1 AND user_id = $2 AND md5(id) = md5($3);

-- delete_episode: Removes one.
SELECT {schema}.delete_episode($1, $2, $3);

-- list_episodes_of_agent: Newest first.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at
  FROM {schema}.agent_episodic_chunks
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3
 ORDER BY created_at DESC, id DESC LIMIT $4;

-- list_episodes_of_session: Newest first.
SELECT app_name, user_id, agent_id, id, session_id, job_id, summary, payload::text AS payload, created_at
  FROM {schema}.agent_episodic_chunks
 WHERE app_name = $1 AND user_id = $2 AND agent_id = $3 AND md5(session_id) = md5($4)
 ORDER BY created_at DESC, id DESC LIMIT $5;

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

-- recall_by_words: The best memories of a user by BM25.
SELECT * FROM {schema}.recall_by_words($1, $2, $9, $10, $3, $4, $5, $6, $7, $8);

-- recall_by_vector: The memories of a user nearest to a vector.
SELECT * FROM {schema}.recall_by_vector($1, $2, $9, $10, $11, $3, $4, $5, $6, $7, $8);

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

-- read_memories: Memories by their ids.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at
  FROM {schema}.memories WHERE app_name = $1 AND user_id = $2 AND id = ANY ($3::bigint[]);

-- list_memories: Newest first, those before an id.
SELECT id, agent_id, kind, namespace, source_id, session_id, author, text, content::text AS content, created_at
  FROM {schema}.memories m
 WHERE app_name = $1 AND user_id = $2 AND {schema}.memory_passes(m, $3, $4, $5, $6, $7) AND id < $9
 ORDER BY id DESC LIMIT $8;

-- forget_memory: Deletes a memory and what it was made of.
SELECT {schema}.forget_memory($1, $2, $3);

-- read_session_turns: The messages of a thread as memories, after a sequence number.
SELECT m.event_id, m.sequence_num, m.role, m.content, m.created_at, e.author
  FROM {schema}.messages m
  JOIN {schema}.events e ON e.thread_id = m.thread_id AND e.sequence_num = m.sequence_num
 WHERE m.thread_id = $1 AND m.sequence_num > $2 AND m.role IN ('user', 'assistant') AND m.content <> ''
 ORDER BY m.sequence_num LIMIT $3;
