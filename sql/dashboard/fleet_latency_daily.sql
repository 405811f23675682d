-- `fleet_latency` from the daily sums, for a time of many days: a bin is a UTC day, and a percentile is within 2.2% of
-- the measured one. Reads the macros that `own_device_time` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH span AS (
    SELECT
        CAST(make_timestamp(getvariable('from_ns') // 1000) AS DATE) AS first,
        CAST(make_timestamp((getvariable('to_ns') - 1) // 1000) AS DATE) AS last
),
bins AS (
    SELECT day, metric, bin, (any_value(from_ns) + any_value(until_ns)) // 2 AS middle_ns, sum(requests) AS requests
    FROM of_fleets('daily_latency'), span
    WHERE day BETWEEN first AND last
    GROUP BY day, metric, bin
),
shares AS (
    SELECT
        day, metric, middle_ns,
        sum(requests) OVER (PARTITION BY day, metric ORDER BY bin) / sum(requests) OVER (PARTITION BY day, metric)
            AS share
    FROM bins
),
percentiles AS (
    SELECT
        day,
        min(CASE WHEN share >= 0.5 THEN middle_ns END) FILTER (metric = 'ttft') / 1e6 AS ttft_p50_ms,
        min(CASE WHEN share >= 0.99 THEN middle_ns END) FILTER (metric = 'ttft') / 1e6 AS ttft_p99_ms,
        min(CASE WHEN share >= 0.5 THEN middle_ns END) FILTER (metric = 'tpot') / 1e6 AS tpot_p50_ms,
        min(CASE WHEN share >= 0.99 THEN middle_ns END) FILTER (metric = 'tpot') / 1e6 AS tpot_p99_ms
    FROM shares
    GROUP BY day
),
counted AS (
    SELECT
        day, CAST(sum(requests) AS BIGINT) AS requests, CAST(sum(slo_ok) AS BIGINT) AS kept,
        min(ttft_budget_min_ns) AS ttft_budget_min_ns, max(ttft_budget_max_ns) AS ttft_budget_max_ns,
        min(tpot_budget_min_ns) AS tpot_budget_min_ns, max(tpot_budget_max_ns) AS tpot_budget_max_ns
    FROM of_fleets('daily_request'), span
    WHERE day BETWEEN first AND last
    GROUP BY day
)
SELECT
    day - first AS bin, CAST(day AS TIMESTAMP) AS t, requests, kept,
    ttft_p50_ms, ttft_p99_ms, tpot_p50_ms, tpot_p99_ms,
    ttft_budget_min_ns, ttft_budget_max_ns, tpot_budget_min_ns, tpot_budget_max_ns
FROM counted
LEFT JOIN percentiles USING (day)
CROSS JOIN span
ORDER BY bin;
