-- Amounts that each event adds to daily_request.
WITH sent AS (
    SELECT
        CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
        run_id, provenance,
        device_id,
        lease_id IS NOT NULL AS lent,
        outcome = 'completed' AS completed,
        outcome <> 'failed' AND coalesce(ttft_ns, if(outcome = 'aborted', e2e_ns, NULL), ttft_budget_ns + 1)
            <= ttft_budget_ns AS ttft_ok,
        outcome <> 'failed' AND coalesce(tpot_mean_ns <= tpot_budget_ns, output_tokens <= 1) AS tpot_ok,
        prompt_tokens, output_tokens, send_delay_ns, ttft_ns, tpot_mean_ns, ttft_budget_ns, tpot_budget_ns,
        -- A row of a sample stands for several requests.
        coalesce(requests, 1) AS requests
    FROM unrolled_event
    WHERE kind = 'request' AND reckonable('request')
)
SELECT
    day, run_id, provenance, device_id, lent,
    requests,
    if(completed, requests, 0) AS completed,
    if(ttft_ok, requests, 0) AS ttft_ok,
    if(tpot_ok, requests, 0) AS tpot_ok,
    if(ttft_ok AND tpot_ok, requests, 0) AS slo_ok,
    requests * prompt_tokens::HUGEINT AS prompt_tokens,
    requests * output_tokens::HUGEINT AS output_tokens,
    requests * send_delay_ns::HUGEINT AS send_delay_ns,
    if(ttft_ns IS NULL, 0, requests) AS ttft_samples,
    if(tpot_mean_ns IS NULL, 0, requests) AS tpot_samples,
    ttft_budget_ns AS ttft_budget_min_ns,
    ttft_budget_ns AS ttft_budget_max_ns,
    tpot_budget_ns AS tpot_budget_min_ns,
    tpot_budget_ns AS tpot_budget_max_ns
FROM sent;
