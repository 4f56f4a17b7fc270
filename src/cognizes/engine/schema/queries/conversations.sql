-- append_to_sessions: Append events to several sessions in one transaction, in the order given. Sessions that do not exist are
-- created. The events of a session are the elements from `first` to `last` of the columns.
SELECT answer.status, answer.thread_id, answer.sequence_nums, answer.created_ats
  FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::integer[], $6::integer[], $7::text[], $8::boolean[],
              $9::text[], $10::integer[])
       WITH ORDINALITY AS item (app_name, user_id, session_id, new_id, first, last, run_id, may_be_resent, fence_run_id,
                                fence_attempt, place)
 CROSS JOIN LATERAL {schema}.append_to_session(
       item.app_name, item.user_id, item.session_id, item.new_id, ($11::text[])[item.first:item.last],
       ($12::text[])[item.first:item.last], ($13::text[])[item.first:item.last], ($14::text[])[item.first:item.last],
       ($15::text[])[item.first:item.last], ($16::text[])[item.first:item.last], ($17::text[])[item.first:item.last],
       item.run_id, item.may_be_resent, item.fence_run_id, item.fence_attempt, false, $18) AS answer
 ORDER BY item.place;

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

-- pop_event: Remove the newest event of the given kinds from the active branch of a session, and return it.
SELECT status, thread_id, (event).sequence_num, (event).id, (event).author, (event).event_type,
       (event).content::text AS content, (event).actions::text AS actions, (event).created_at
  FROM {schema}.pop_event($1, $2, $3, $4::text[], $5, $6, $7, $8);

-- clear_session: Remove all events of a session from all of its branches.
SELECT {schema}.clear_session($1, $2, $3, $4, $5, $6);
