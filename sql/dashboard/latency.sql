-- Serving latency of a fleet in [from_ns, to_ns): p50 and p99 of the time to the first token and of the mean time for
-- each further token, in at most `blocks` bins of a second or more, each with how many requests it has and how many
-- kept both budgets. Percentiles are the nearest measured value, in milliseconds. A bin without requests has no row.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 120;
WITH span AS (
    SELECT
        getvariable('from_ns') // 1000 AS from_us,
        greatest(1000000, (getvariable('to_ns') - getvariable('from_ns')) // 1000 // getvariable('blocks') + 1)
            AS bin_us
)
SELECT
    (epoch_us(event_time) - from_us) // bin_us AS bin,
    make_timestamp(from_us + bin_us * ((epoch_us(event_time) - from_us) // bin_us)) AS t,
    count(*) AS requests,
    count_if(slo_ok) AS kept,
    quantile_disc(ttft_ns, 0.5) / 1e6 AS ttft_p50_ms,
    quantile_disc(ttft_ns, 0.99) / 1e6 AS ttft_p99_ms,
    quantile_disc(tpot_mean_ns, 0.5) / 1e6 AS tpot_p50_ms,
    quantile_disc(tpot_mean_ns, 0.99) / 1e6 AS tpot_p99_ms,
    min(ttft_budget_ns) AS ttft_budget_min_ns, max(ttft_budget_ns) AS ttft_budget_max_ns,
    min(tpot_budget_ns) AS tpot_budget_min_ns, max(tpot_budget_ns) AS tpot_budget_max_ns
FROM request, span
WHERE run_id = getvariable('run_id')
  AND event_time >= make_timestamp(from_us) AND event_time < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY ALL
ORDER BY bin;
