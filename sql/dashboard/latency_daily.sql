-- `latency` from the daily sums, for a run of many days: a bin is a UTC day, and a percentile is within 2.2%
-- of the measured one.
-- By hand: SET VARIABLE run_id = '...';
WITH shares AS (
    SELECT
        day, lent, metric, (from_ns + until_ns) // 2 AS middle_ns,
        sum(requests) OVER (PARTITION BY day, lent, metric ORDER BY bin)
            / sum(requests) OVER (PARTITION BY day, lent, metric) AS share
    FROM daily_latency
    WHERE run_id = getvariable('run_id')
),
percentiles AS (
    SELECT
        day, lent,
        min(CASE WHEN share >= 0.5 THEN middle_ns END) FILTER (metric = 'ttft') / 1e6 AS ttft_p50_ms,
        min(CASE WHEN share >= 0.99 THEN middle_ns END) FILTER (metric = 'ttft') / 1e6 AS ttft_p99_ms,
        min(CASE WHEN share >= 0.5 THEN middle_ns END) FILTER (metric = 'tpot') / 1e6 AS tpot_p50_ms,
        min(CASE WHEN share >= 0.99 THEN middle_ns END) FILTER (metric = 'tpot') / 1e6 AS tpot_p99_ms
    FROM shares
    GROUP BY day, lent
),
counted AS (
    SELECT day, lent, CAST(sum(requests) AS BIGINT) AS requests, CAST(sum(slo_ok) AS BIGINT) AS kept
    FROM daily_request
    WHERE run_id = getvariable('run_id')
    GROUP BY day, lent
)
SELECT CAST(day AS TIMESTAMP) AS t, lent, requests, kept, ttft_p50_ms, ttft_p99_ms, tpot_p50_ms, tpot_p99_ms
FROM counted
LEFT JOIN percentiles USING (day, lent)
ORDER BY ALL;
