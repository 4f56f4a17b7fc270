-- read_event_previews: Read events in order. Documents larger than $4 are null, with their sizes; an event larger than $5
-- has the beginning of its text. The size of the larger document follows from that of the smaller one.
SELECT e.sequence_num, e.bytes, e.thread_id, e.run_id, e.event_type, e.version, e.created_at, left(e.id, 1000) AS id,
       left(e.invocation_id, 1000) AS invocation_id, left(e.author, 1000) AS author,
       CASE WHEN e.bytes <= $4 OR size.documents - size.actions <= $4 THEN e.content::text END AS content,
       CASE WHEN e.bytes <= $4 OR size.actions <= $4 THEN e.actions::text END AS actions,
       size.documents - size.actions AS content_bytes, size.actions AS actions_bytes,
       CASE WHEN e.bytes > $5 THEN left(m.content, 1000) END AS text, m.role
  FROM {schema}.events e
  LEFT JOIN LATERAL (
        SELECT whole.documents, CASE WHEN pg_column_size(e.actions) < pg_column_size(e.content)
                                     THEN octet_length(e.actions::text)
                                     ELSE whole.documents - octet_length(e.content::text) END AS actions
          FROM (SELECT e.bytes - octet_length(e.id) - octet_length(e.invocation_id) - octet_length(e.author)
                       AS documents) whole) size ON e.bytes > $4
  LEFT JOIN {schema}.messages m ON m.thread_id = e.thread_id AND m.sequence_num = e.sequence_num
 WHERE e.thread_id = $1 AND e.sequence_num > $2
 ORDER BY e.sequence_num
 LIMIT $3;
