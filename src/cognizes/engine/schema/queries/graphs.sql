-- put_checkpoint: Store a checkpoint of a graph and its new channel values.
SELECT {schema}.put_checkpoint($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12, $13, $14, $15, $16, $17,
                               $18, $19, $20);

-- put_graph_writes: Store what a task wrote after a checkpoint.
SELECT {schema}.put_graph_writes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- read_newest_checkpoint: Read the newest checkpoint of a namespace with its channel values and writes.
SELECT n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.parent_id, c.type, c.checkpoint, c.metadata::text AS metadata,
       c.written_by, v.channels, v.types, v.values, w.task_ids, w.channels AS write_channels, w.types AS write_types,
       w.values AS write_values
  FROM {schema}.graph_namespaces n
 CROSS JOIN LATERAL (SELECT * FROM {schema}.graph_checkpoints WHERE namespace_id = n.id
                      ORDER BY checkpoint_id DESC LIMIT 1) c
 CROSS JOIN LATERAL {schema}.graph_channel_values(c.namespace_id, c.channels, c.versions) v
 CROSS JOIN LATERAL {schema}.graph_pending_writes(c.namespace_id, c.checkpoint_id) w
 WHERE md5(n.thread_id) = md5($2) AND n.app_name = $1 AND md5(n.checkpoint_ns) = md5($3)
   AND n.thread_id = $2 AND n.checkpoint_ns = $3;

-- read_checkpoint: Read one checkpoint of a namespace with its channel values and writes.
SELECT n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.parent_id, c.type, c.checkpoint, c.metadata::text AS metadata,
       c.written_by, v.channels, v.types, v.values, w.task_ids, w.channels AS write_channels, w.types AS write_types,
       w.values AS write_values
  FROM {schema}.graph_namespaces n
  JOIN {schema}.graph_checkpoints c ON c.namespace_id = n.id AND c.checkpoint_id = $4
 CROSS JOIN LATERAL {schema}.graph_channel_values(c.namespace_id, c.channels, c.versions) v
 CROSS JOIN LATERAL {schema}.graph_pending_writes(c.namespace_id, c.checkpoint_id) w
 WHERE md5(n.thread_id) = md5($2) AND n.app_name = $1 AND md5(n.checkpoint_ns) = md5($3)
   AND n.thread_id = $2 AND n.checkpoint_ns = $3;

-- list_checkpoints: Read a page of checkpoints, newest first: of a thread or all, of a namespace or all, one id or all,
-- before an id, with metadata that contains a document, after the last row of the previous page.
SELECT page.thread_id, page.checkpoint_ns, page.checkpoint_id, page.parent_id, page.type, page.checkpoint,
       page.metadata::text AS metadata, page.written_by, page.namespace_id, v.channels, v.types, v.values, w.task_ids,
       w.channels AS write_channels, w.types AS write_types, w.values AS write_values
  FROM (SELECT n.thread_id, n.checkpoint_ns, c.*
          FROM {schema}.graph_namespaces n
          JOIN {schema}.graph_checkpoints c ON c.namespace_id = n.id
         WHERE n.app_name = $1
           AND ($2::text IS NULL OR md5(n.thread_id) = md5($2) AND n.thread_id = $2)
           AND ($3::text IS NULL OR n.checkpoint_ns = $3)
           AND ($4::text IS NULL OR c.checkpoint_id = $4)
           AND ($5::text IS NULL OR c.checkpoint_id < $5)
           AND ($6::text IS NULL OR c.metadata @> $6::text::jsonb)
           AND ($7::text IS NULL OR (c.checkpoint_id, c.namespace_id) < ($7, $8::bigint))
         ORDER BY c.checkpoint_id DESC, c.namespace_id DESC
         LIMIT $9) page
 CROSS JOIN LATERAL {schema}.graph_channel_values(page.namespace_id, page.channels, page.versions) v
 CROSS JOIN LATERAL {schema}.graph_pending_writes(page.namespace_id, page.checkpoint_id) w
 ORDER BY page.checkpoint_id DESC, page.namespace_id DESC;

-- graph_channel_history: Read what delta channels of a checkpoint are rebuilt from.
SELECT * FROM {schema}.graph_channel_history($1, $2, $3, $4, $5);

-- delete_graph_threads: Delete all checkpoints of threads.
SELECT {schema}.delete_graph_threads($1, $2);

-- delete_graph_runs: Delete the checkpoints that runs stored.
SELECT {schema}.delete_graph_runs($1, $2);

-- copy_graph_thread: Copy all checkpoints of a thread to another thread id.
SELECT {schema}.copy_graph_thread($1, $2, $3);

-- prune_graph_checkpoints: Keep the newest checkpoint of every namespace of threads.
SELECT {schema}.prune_graph_checkpoints($1, $2);
