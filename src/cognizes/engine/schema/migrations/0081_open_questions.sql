-- Whether a new run withdraws the questions of a waiting run is an argument of begin_hosted_run; it was p_has_text.
DROP FUNCTION IF EXISTS {schema}.begin_hosted_run(
    uuid, text, text, text, json, integer, text, interval, text, text[], boolean);
