-- Functions whose arguments or result columns change: PostgreSQL would refuse the new one, or keep both.
DROP FUNCTION IF EXISTS {schema}.recall_by_words(
    text, text, text, text, text, text[], text, timestamptz, timestamptz, integer, boolean);
DROP FUNCTION IF EXISTS {schema}.find_messages_by_words(
    text, text, uuid, text, text[], timestamptz, timestamptz, integer);
DROP FUNCTION IF EXISTS {schema}.recall_by_vector(
    text, text, text, integer, text, text, text[], text, timestamptz, timestamptz, integer, boolean);
DROP FUNCTION IF EXISTS {schema}.store_vectors(text[], text[], bigint[], bigint[], text, text[]);
