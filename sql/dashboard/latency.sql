-- Serving latency over time: p50 and p99 of the time to the first token and of the mean time for each further token,
-- in at most 120 bins of a second or more, for requests that arrived while the device was lent and while it was not.
-- Percentiles are the nearest measured value, in milliseconds; `requests` and `kept` count all requests of the bin.
-- By hand: SET VARIABLE run_id = '...';
WITH span AS (
    SELECT
        min(epoch_us(event_time)) AS from_us,
        greatest(1000000, (max(epoch_us(event_time)) - min(epoch_us(event_time))) // 120 + 1) AS bin_us
    FROM request
    WHERE run_id = getvariable('run_id')
)
SELECT
    make_timestamp(from_us + bin_us * ((epoch_us(event_time) - from_us) // bin_us)) AS t,
    lent,
    count(*) AS requests,
    count_if(slo_ok) AS kept,
    quantile_disc(ttft_ns, 0.5) / 1e6 AS ttft_p50_ms,
    quantile_disc(ttft_ns, 0.99) / 1e6 AS ttft_p99_ms,
    quantile_disc(tpot_mean_ns, 0.5) / 1e6 AS tpot_p50_ms,
    quantile_disc(tpot_mean_ns, 0.99) / 1e6 AS tpot_p99_ms
FROM request, span
WHERE run_id = getvariable('run_id')
GROUP BY ALL
ORDER BY ALL;
