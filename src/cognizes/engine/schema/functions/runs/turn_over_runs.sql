-- Ends some runs, as `end_runs` does, and then claims others, as `claim_runs` does, in one commit. p_claims is a list of
-- {"handlers": [...], "workers": [...]}; what claim n of it brings is answered with place n and the outcome `claimed`.
CREATE OR REPLACE FUNCTION {schema}.turn_over_runs(
    p_thread_ids uuid[], p_run_ids text[], p_attempts integer[], p_statuses text[], p_results text[], p_errors text[],
    p_event_ids text[], p_event_types text[], p_contents text[], p_claims jsonb, p_lease interval
) RETURNS TABLE (place integer, outcome text, run {schema}.runs) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_claim record;
BEGIN
    RETURN QUERY SELECT * FROM {schema}.end_runs(
        p_thread_ids, p_run_ids, p_attempts, p_statuses, p_results, p_errors, p_event_ids, p_event_types, p_contents,
        false);
    FOR v_claim IN
        SELECT (entry.number - 1)::integer AS place,
               ARRAY(SELECT jsonb_array_elements_text(entry.claim -> 'handlers')) AS handlers,
               ARRAY(SELECT jsonb_array_elements_text(entry.claim -> 'workers')) AS workers
          FROM jsonb_array_elements(p_claims) WITH ORDINALITY AS entry (claim, number)
    LOOP
        RETURN QUERY SELECT v_claim.place, 'claimed', c FROM {schema}.claim_runs(
            v_claim.handlers, v_claim.workers, p_lease) AS c;
    END LOOP;
END
$$;
