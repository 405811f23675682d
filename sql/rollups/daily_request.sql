-- What each event adds to daily_request.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    device_id,
    lease_id IS NOT NULL AS lent,
    1 AS requests,
    CAST(outcome = 'completed' AS BIGINT) AS completed,
    CAST(outcome = 'completed' AND coalesce(ttft_ns <= ttft_budget_ns, false) AS BIGINT) AS ttft_ok,
    CAST(outcome = 'completed' AND coalesce(tpot_mean_ns <= tpot_budget_ns, output_tokens <= 1) AS BIGINT) AS tpot_ok,
    CAST(
        outcome = 'completed'
        AND coalesce(ttft_ns <= ttft_budget_ns, false)
        AND coalesce(tpot_mean_ns <= tpot_budget_ns, output_tokens <= 1) AS BIGINT
    ) AS slo_ok,
    prompt_tokens,
    output_tokens,
    send_delay_ns,
    CAST(ttft_ns IS NOT NULL AS BIGINT) AS ttft_samples,
    CAST(tpot_mean_ns IS NOT NULL AS BIGINT) AS tpot_samples,
    ttft_budget_ns AS ttft_budget_min_ns,
    ttft_budget_ns AS ttft_budget_max_ns,
    tpot_budget_ns AS tpot_budget_min_ns,
    tpot_budget_ns AS tpot_budget_max_ns
FROM unrolled_event
WHERE kind = 'request' AND reckonable('request');
