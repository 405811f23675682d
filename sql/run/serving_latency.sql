-- Latency of serving's clients, with the device lent at their arrival and without; `everything` marks the row of all
-- requests. Percentiles are the nearest measured value, in nanoseconds.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    grouping(lent) = 1 AS everything,
    lent,
    count(*) AS requests,
    count_if(outcome = 'failed') AS failed,
    count_if(NOT coalesce(slo_ok, false)) AS violations,
    count(ttft_ns) AS ttft_samples,
    quantile_disc(ttft_ns, 0.5) AS ttft_p50_ns,
    quantile_disc(ttft_ns, 0.99) AS ttft_p99_ns,
    count(tpot_mean_ns) AS tpot_samples,
    quantile_disc(tpot_mean_ns, 0.5) AS tpot_p50_ns,
    quantile_disc(tpot_mean_ns, 0.99) AS tpot_p99_ns,
    min(ttft_budget_ns) AS ttft_budget_min_ns,
    max(ttft_budget_ns) AS ttft_budget_max_ns,
    min(tpot_budget_ns) AS tpot_budget_min_ns,
    max(tpot_budget_ns) AS tpot_budget_max_ns
FROM request
WHERE run_id = getvariable('run_id')
GROUP BY GROUPING SETS ((lent), ())
ORDER BY grouping(lent), lent;
