-- append_to_sessions: Append events to several sessions in one transaction, in the order given. Sessions that do not exist are
-- created.
SELECT status, thread_id, sequence_nums, created_ats
  FROM {schema}.append_to_sessions(
       $1::text[], $2::text[], $3::text[], $4::uuid[], $5::integer[], $6::text[], $7::boolean[], $8::text[], $9::integer[],
       $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17);

-- read_session_items: Read the newest events of the given kinds on a branch of a session, newest first, with the thread. The
-- row of a session without such events has no sequence number. A thought counts only with the mark of a framework's item.
SELECT t.id AS thread_id, e.sequence_num, e.id, e.author, e.event_type, e.content, e.actions, e.created_at
  FROM {schema}.threads t
  LEFT JOIN LATERAL (
        SELECT part.* FROM {schema}.branch_path(t.id, $4) AS path
         CROSS JOIN LATERAL (
                SELECT o.sequence_num, o.id, o.author, o.event_type, o.content::text AS content,
                       o.actions::text AS actions, o.created_at
                  FROM {schema}.events o
                 WHERE o.thread_id = t.id AND o.sequence_num BETWEEN path.first_sequence AND path.last_sequence
                   AND o.event_type = ANY ($5::text[])
                   AND (o.event_type <> 'thought' OR starts_with(left(o.content::text, length($6)), $6))
                 ORDER BY o.sequence_num DESC
                 LIMIT $7) AS part
         ORDER BY part.sequence_num DESC
         LIMIT $7) AS e ON true
 WHERE t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5($3) AND t.session_id = $3
 ORDER BY e.sequence_num DESC;

-- read_session_documents: Read the same events as `read_session_items`, oldest first, as one JSON array: kind, author and content
-- of each, and the id and the actions of those that no item of the framework is marked in.
SELECT t.id AS thread_id, count(e.document) AS number,
       '[' || string_agg(e.document, ',' ORDER BY e.sequence_num) || ']' AS documents
  FROM {schema}.threads t
  LEFT JOIN LATERAL (
        SELECT part.* FROM {schema}.branch_path(t.id, $4) AS path
         CROSS JOIN LATERAL (
                SELECT o.sequence_num,
                       '[' || to_json(o.event_type)::text || ',' || to_json(o.author)::text || ',' || o.content::text
                       || CASE WHEN starts_with(left(o.content::text, length($6)), $6) THEN ']'
                               ELSE ',' || to_json(o.id)::text || ',' || o.actions::text || ']' END AS document
                  FROM {schema}.events o
                 WHERE o.thread_id = t.id AND o.sequence_num BETWEEN path.first_sequence AND path.last_sequence
                   AND o.event_type = ANY ($5::text[])
                   AND (o.event_type <> 'thought' OR starts_with(left(o.content::text, length($6)), $6))
                 ORDER BY o.sequence_num DESC
                 LIMIT $7) AS part
         ORDER BY part.sequence_num DESC
         LIMIT $7) AS e ON true
 WHERE t.app_name = $1 AND t.user_id = $2 AND md5(t.session_id) = md5($3) AND t.session_id = $3
 GROUP BY t.id;

-- pop_event: Remove the newest event of the given kinds from the active branch of a session, and return it.
SELECT status, thread_id, (event).sequence_num, (event).id, (event).author, (event).event_type,
       (event).content::text AS content, (event).actions::text AS actions, (event).created_at
  FROM {schema}.pop_event($1, $2, $3, $4::text[], $5, $6, $7, $8);

-- clear_session: Remove all events of a session from all of its branches.
SELECT {schema}.clear_session($1, $2, $3, $4, $5, $6);
