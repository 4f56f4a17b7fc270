-- put_graph_items: Store, replace and delete items of a graph's store.
SELECT {schema}.put_graph_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- get_graph_items: Read items of a graph's store by namespace and key.
SELECT * FROM {schema}.get_graph_items($1, $2, $3, $4, $5);

-- search_graph_items: Find items below a namespace by their values and by meaning.
SELECT * FROM {schema}.search_graph_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- list_graph_namespaces: List the namespaces of a graph's store.
SELECT namespace FROM {schema}.list_graph_namespaces($1, $2, $3, $4, $5, $6, $7) AS namespace;
