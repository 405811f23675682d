-- For the infra lead: how did the latencies of serving change from hour to hour, with the device lent and not lent?
--
-- since (TIMESTAMP): only requests recorded at or after this time, UTC.
-- until (TIMESTAMP): only requests recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Hours are UTC; a request counts in the hour in which it ended. Percentiles are measured values, in nanoseconds, and
-- mean little below a hundred requests. `requests` includes failed requests, which have no latency. Compare latencies
-- only under the same trace and scales.
SELECT
    date_trunc('hour', event_time) AS hour,
    provenance, run_id, trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    lent,
    count(*) AS requests,
    count(*) FILTER (slo_ok) AS slo_kept,
    quantile_disc(ttft_ns, 0.5) AS ttft_p50_ns,
    quantile_disc(ttft_ns, 0.9) AS ttft_p90_ns,
    quantile_disc(ttft_ns, 0.99) AS ttft_p99_ns,
    quantile_disc(tpot_mean_ns, 0.5) AS tpot_p50_ns,
    quantile_disc(tpot_mean_ns, 0.9) AS tpot_p90_ns,
    quantile_disc(tpot_mean_ns, 0.99) AS tpot_p99_ns
FROM request
WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY hour, run_id, provenance, lent;
