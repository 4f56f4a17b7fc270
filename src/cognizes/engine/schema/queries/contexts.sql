-- read_context: Read the properties of a context, without its content.
SELECT t.id, t.session_id, t.app_name, t.user_id, t.title, t.metadata::text AS metadata, t.version, t.last_sequence,
       t.created_at, t.updated_at, coalesce(b.name, 'main') AS branch, counted.messages, counted.counted_to,
       counted.messages_to,
       ARRAY(SELECT r.id FROM {schema}.runs r WHERE r.thread_id = t.id AND r.status = 'running') AS running
  FROM {schema}.threads t
 CROSS JOIN LATERAL {schema}.find_branch(t.id, NULL) AS active (number)
  LEFT JOIN {schema}.branches b ON b.thread_id = t.id AND b.number = active.number
 CROSS JOIN LATERAL {schema}.count_messages(t.id, NULL, t.last_sequence) AS counted
 WHERE t.id = $1;

-- save_message_count: Store the number of messages up to an event, as a starting point of later counts.
INSERT INTO {schema}.message_counts (thread_id, sequence_num, app_name, messages)
SELECT id, $2, app_name, $3 FROM {schema}.threads WHERE id = $1
ON CONFLICT DO NOTHING;

-- count_branch_messages: Count the messages of a branch.
SELECT messages FROM {schema}.threads t, {schema}.count_messages(t.id, $2, t.last_sequence) WHERE t.id = $1;

-- read_newest_events: Read the newest events up to one, newest first, without large contents, which do not affect the
-- state.
SELECT sequence_num, left(id, 1000) AS id, thread_id, run_id, left(invocation_id, 1000) AS invocation_id,
       left(author, 1000) AS author, event_type, CASE WHEN bytes < $4 THEN content::text ELSE '{}' END AS content,
       CASE WHEN bytes < $4 THEN actions::text ELSE '{}' END AS actions, version, created_at
  FROM {schema}.events
 WHERE thread_id = $1 AND sequence_num <= $2
 ORDER BY sequence_num DESC
 LIMIT $3;

-- read_branch_messages: Read a page of the messages of a branch after an event, oldest first, with an offset, including
-- tool calls and results without text. Reads the event where the text is not the whole message.
SELECT e.sequence_num, size.bytes, m.role, e.event_type, e.created_at, s.status, s.final_sequence,
       CASE WHEN size.bytes <= $6 THEN m.id END AS id, CASE WHEN size.bytes <= $6 THEN m.content END AS content,
       CASE WHEN size.bytes <= $6 THEN e.id END AS event_id, CASE WHEN size.bytes <= $6 THEN e.author END AS author,
       CASE WHEN size.bytes > $6 THEN NULL
            WHEN m.id IS NULL OR m.role = 'tool'
                 OR left(e.content::text, 60) ~ '^\s*\{\s*"(adk"\s*:|content"\s*:\s*\[)'
            THEN e.content::text END AS document
  FROM (SELECT said.sequence_num FROM {schema}.branch_path($1, $2) AS path
         CROSS JOIN LATERAL (
        (SELECT m.sequence_num FROM {schema}.messages m
          WHERE m.thread_id = $1 AND m.sequence_num BETWEEN path.first_sequence AND path.last_sequence
            AND m.sequence_num > $3
          ORDER BY m.sequence_num
          LIMIT $4::bigint + $5::bigint)
        UNION ALL
        (SELECT e.sequence_num FROM {schema}.events e
          WHERE e.thread_id = $1 AND e.sequence_num BETWEEN path.first_sequence AND path.last_sequence
            AND e.sequence_num > $3 AND e.event_type IN ('act', 'tool_call', 'observe', 'tool_result')
            AND NOT EXISTS (SELECT FROM {schema}.messages m
                             WHERE m.thread_id = $1 AND m.sequence_num = e.sequence_num)
          ORDER BY e.sequence_num
          LIMIT $4::bigint + $5::bigint)) said
         ORDER BY said.sequence_num
        OFFSET $4::bigint
         LIMIT $5::bigint) page
  JOIN {schema}.events e ON e.thread_id = $1 AND e.sequence_num = page.sequence_num
  LEFT JOIN {schema}.messages m ON m.thread_id = $1 AND m.sequence_num = page.sequence_num
  LEFT JOIN {schema}.message_streams s
    ON s.thread_id = $1 AND md5(s.message_id) = md5(m.id) AND s.message_id = m.id
 CROSS JOIN LATERAL (SELECT e.bytes + coalesce(octet_length(m.content), 0) AS bytes) size
 ORDER BY page.sequence_num;

-- read_branch_messages_before: Read a page of the messages of a branch before an event, newest first.
SELECT e.sequence_num, size.bytes, m.role, e.event_type, e.created_at, s.status, s.final_sequence,
       CASE WHEN size.bytes <= $6 THEN m.id END AS id, CASE WHEN size.bytes <= $6 THEN m.content END AS content,
       CASE WHEN size.bytes <= $6 THEN e.id END AS event_id, CASE WHEN size.bytes <= $6 THEN e.author END AS author,
       CASE WHEN size.bytes > $6 THEN NULL
            WHEN m.id IS NULL OR m.role = 'tool'
                 OR left(e.content::text, 60) ~ '^\s*\{\s*"(adk"\s*:|content"\s*:\s*\[)'
            THEN e.content::text END AS document
  FROM (SELECT said.sequence_num FROM {schema}.branch_path($1, $2) AS path
         CROSS JOIN LATERAL (
        (SELECT m.sequence_num FROM {schema}.messages m
          WHERE m.thread_id = $1 AND m.sequence_num BETWEEN path.first_sequence AND path.last_sequence
            AND m.sequence_num < $3
          ORDER BY m.sequence_num DESC
          LIMIT $4::bigint + $5::bigint)
        UNION ALL
        (SELECT e.sequence_num FROM {schema}.events e
          WHERE e.thread_id = $1 AND e.sequence_num BETWEEN path.first_sequence AND path.last_sequence
            AND e.sequence_num < $3 AND e.event_type IN ('act', 'tool_call', 'observe', 'tool_result')
            AND NOT EXISTS (SELECT FROM {schema}.messages m
                             WHERE m.thread_id = $1 AND m.sequence_num = e.sequence_num)
          ORDER BY e.sequence_num DESC
          LIMIT $4::bigint + $5::bigint)) said
         ORDER BY said.sequence_num DESC
        OFFSET $4::bigint
         LIMIT $5::bigint) page
  JOIN {schema}.events e ON e.thread_id = $1 AND e.sequence_num = page.sequence_num
  LEFT JOIN {schema}.messages m ON m.thread_id = $1 AND m.sequence_num = page.sequence_num
  LEFT JOIN {schema}.message_streams s
    ON s.thread_id = $1 AND md5(s.message_id) = md5(m.id) AND s.message_id = m.id
 CROSS JOIN LATERAL (SELECT e.bytes + coalesce(octet_length(m.content), 0) AS bytes) size
 ORDER BY page.sequence_num DESC;

-- read_branch_messages_at: Read the messages with the given sequence numbers, whole.
SELECT e.sequence_num, m.role, e.event_type, e.created_at, s.status, s.final_sequence, m.id, m.content,
       e.id AS event_id, e.author,
       CASE WHEN m.id IS NULL OR m.role = 'tool'
                 OR left(e.content::text, 60) ~ '^\s*\{\s*"(adk"\s*:|content"\s*:\s*\[)'
            THEN e.content::text END AS document
  FROM {schema}.events e
  LEFT JOIN {schema}.messages m ON m.thread_id = e.thread_id AND m.sequence_num = e.sequence_num
  LEFT JOIN {schema}.message_streams s
    ON s.thread_id = m.thread_id AND md5(s.message_id) = md5(m.id) AND s.message_id = m.id
 WHERE e.thread_id = $1 AND e.sequence_num = ANY ($2::bigint[]);

-- read_messages_by_id: Read a page of messages of a thread by id, in the order of the ids. A tool call or result
-- without text has the id of its event.
SELECT asked.id AS asked_id, e.sequence_num, size.bytes, m.role, e.event_type, e.created_at, s.status, s.final_sequence,
       CASE WHEN size.bytes <= $4 THEN m.id END AS id, CASE WHEN size.bytes <= $4 THEN m.content END AS content,
       CASE WHEN size.bytes <= $4 THEN e.id END AS event_id, CASE WHEN size.bytes <= $4 THEN e.author END AS author,
       CASE WHEN size.bytes > $4 THEN NULL
            WHEN m.id IS NULL OR m.role = 'tool'
                 OR left(e.content::text, 60) ~ '^\s*\{\s*"(adk"\s*:|content"\s*:\s*\[)'
            THEN e.content::text END AS document
  FROM unnest($2::text[]) WITH ORDINALITY AS asked (id, place)
  LEFT JOIN {schema}.messages m ON m.thread_id = $1 AND md5(m.id) = md5(asked.id) AND m.id = asked.id
  JOIN LATERAL (
        SELECT * FROM {schema}.events WHERE thread_id = $1 AND sequence_num = m.sequence_num
        UNION ALL
        SELECT * FROM {schema}.events o
         WHERE m.id IS NULL AND o.thread_id = $1 AND md5(o.id) = md5(asked.id) AND o.id = asked.id
           AND o.event_type IN ('act', 'tool_call', 'observe', 'tool_result')
           AND NOT EXISTS (SELECT FROM {schema}.messages r
                            WHERE r.thread_id = $1 AND r.sequence_num = o.sequence_num)) e ON true
  LEFT JOIN {schema}.message_streams s
    ON s.thread_id = m.thread_id AND md5(s.message_id) = md5(m.id) AND s.message_id = m.id
 CROSS JOIN LATERAL (SELECT e.bytes + coalesce(octet_length(m.content), 0) AS bytes) size
 ORDER BY asked.place
 LIMIT $3;

-- list_branches: List all branches that are not deleted, `main` first. The tip is the end of the newest segment of the
-- branch, or its fork. The segments are read once, so the cost does not depend on the nesting of branches.
WITH segment AS (
    SELECT s.branch, coalesce(lead(s.from_sequence) OVER (ORDER BY s.from_sequence) - 1, 9223372036854775807) AS up_to
      FROM (SELECT 0 AS branch, 0::bigint AS from_sequence
            UNION ALL
            SELECT branch, from_sequence FROM {schema}.branch_segments WHERE thread_id = $1) s
), tip AS (
    SELECT branch, max(up_to) AS sequence FROM segment GROUP BY branch
)
SELECT b.number, b.name, coalesce(p.name, 'main') AS parent, b.forked_at, b.created_at,
       b.number = active.number AS is_active,
       least(t.last_sequence, coalesce(tip.sequence, b.forked_at)) AS tip
  FROM {schema}.threads t
 CROSS JOIN LATERAL {schema}.find_branch(t.id, NULL) AS active (number)
 CROSS JOIN LATERAL (
        SELECT 0 AS number, 'main' AS name, NULL::integer AS parent, NULL::bigint AS forked_at, t.created_at
        UNION ALL
        SELECT number, name, parent, forked_at, created_at
          FROM {schema}.branches WHERE thread_id = $1 AND deleted_at IS NULL) b
  LEFT JOIN {schema}.branches p ON p.thread_id = $1 AND p.number = b.parent
  LEFT JOIN tip ON tip.branch = b.number
 WHERE t.id = $1
 ORDER BY b.number;

-- create_branch: Create a branch that forks at an event, or at the newest one.
SELECT {schema}.create_branch($1, $2, $3, $4);

-- switch_branch: Make another branch the active one.
SELECT status, sequence_num FROM {schema}.switch_branch($1, $2, $3, $4::text::json, $5::text::jsonb, $6, $7);

-- delete_branch: Delete a branch. Its events stay in the log.
SELECT {schema}.delete_branch($1, $2, $3);

-- list_active_runs: List running and waiting runs.
SELECT id, status FROM {schema}.runs
 WHERE thread_id = $1 AND status IN ('pending', 'running', 'waiting') ORDER BY created_at DESC LIMIT 100;

-- read_final_sequences: Read the last chunk of each streamed message whose event lies in a range.
SELECT s.message_id, s.final_sequence
  FROM {schema}.events e
  JOIN {schema}.message_streams s
    ON s.thread_id = e.thread_id AND md5(s.message_id) = md5(coalesce(nullif(e.content ->> 'message_id', ''), e.id))
 WHERE e.thread_id = $1 AND e.sequence_num > $2 AND e.sequence_num <= $3 AND s.final_sequence IS NOT NULL
   AND s.role NOT IN ('thought', 'call');
