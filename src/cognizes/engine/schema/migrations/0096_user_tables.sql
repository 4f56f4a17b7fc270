-- The result of the function has changed.
DROP FUNCTION IF EXISTS {schema}.user_tables();
