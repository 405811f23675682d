-- `serving_latency` from the daily sums, for a run of many days; a percentile is within 2.2% of the measured one.
-- By hand: SET VARIABLE run_id = '...';
WITH bins AS (
    SELECT grouping(lent) = 1 AS everything, lent, metric, bin, (from_ns + until_ns) // 2 AS middle_ns,
        sum(requests) AS requests
    FROM daily_latency
    WHERE run_id = getvariable('run_id')
    GROUP BY GROUPING SETS ((lent, metric, bin, from_ns, until_ns), (metric, bin, from_ns, until_ns))
),
shares AS (
    SELECT
        everything, lent, metric, middle_ns,
        sum(requests) OVER (PARTITION BY everything, lent, metric ORDER BY bin)
            / sum(requests) OVER (PARTITION BY everything, lent, metric) AS share
    FROM bins
),
percentiles AS (
    SELECT
        everything, lent,
        min(CASE WHEN share >= 0.5 THEN middle_ns END) FILTER (metric = 'ttft') AS ttft_p50_ns,
        min(CASE WHEN share >= 0.99 THEN middle_ns END) FILTER (metric = 'ttft') AS ttft_p99_ns,
        min(CASE WHEN share >= 0.5 THEN middle_ns END) FILTER (metric = 'tpot') AS tpot_p50_ns,
        min(CASE WHEN share >= 0.99 THEN middle_ns END) FILTER (metric = 'tpot') AS tpot_p99_ns
    FROM shares
    GROUP BY everything, lent
),
counted AS (
    SELECT
        grouping(lent) = 1 AS everything,
        lent,
        CAST(sum(requests) AS BIGINT) AS requests,
        CAST(sum(requests) - sum(completed) AS BIGINT) AS failed,
        CAST(sum(requests) - sum(slo_ok) AS BIGINT) AS violations,
        CAST(sum(ttft_samples) AS BIGINT) AS ttft_samples,
        CAST(sum(tpot_samples) AS BIGINT) AS tpot_samples,
        min(ttft_budget_min_ns) AS ttft_budget_min_ns,
        max(ttft_budget_max_ns) AS ttft_budget_max_ns,
        min(tpot_budget_min_ns) AS tpot_budget_min_ns,
        max(tpot_budget_max_ns) AS tpot_budget_max_ns
    FROM daily_request
    WHERE run_id = getvariable('run_id')
    GROUP BY GROUPING SETS ((lent), ())
)
SELECT
    counted.everything, counted.lent, requests, failed, violations,
    ttft_samples, ttft_p50_ns, ttft_p99_ns, tpot_samples, tpot_p50_ns, tpot_p99_ns,
    ttft_budget_min_ns, ttft_budget_max_ns, tpot_budget_min_ns, tpot_budget_max_ns
FROM counted
LEFT JOIN percentiles ON counted.everything = percentiles.everything AND counted.lent IS NOT DISTINCT FROM percentiles.lent
ORDER BY counted.everything, counted.lent;
