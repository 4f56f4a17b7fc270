-- write_conversation: Store a conversation of Pydantic AI and its new entries.
SELECT {schema}.write_conversation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15);

-- read_conversation: Read the record of a conversation.
SELECT conversation_id, user_id, head_id, branches, document::text AS document, revision, updated_at, written_by
  FROM {schema}.conversation_records
 WHERE app_name = $1 AND md5(conversation_id) = md5($2) AND conversation_id = $2;

-- list_conversations: Read the records of a scope, or of all, the newest first.
SELECT conversation_id, user_id, head_id, branches, document::text AS document, revision, updated_at, written_by
  FROM {schema}.conversation_records
 WHERE app_name = $1 AND ($2::text IS NULL OR user_id = $2)
 ORDER BY updated_at DESC, conversation_id LIMIT $3;

-- read_conversation_history: Read the last entries of a history, newest first.
SELECT * FROM {schema}.read_conversation_history($1, $2, $3);

-- delete_conversation: Delete a conversation if its revision is the expected one.
SELECT {schema}.delete_conversation($1, $2, $3);
