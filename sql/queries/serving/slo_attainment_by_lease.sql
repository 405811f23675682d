-- For the infra lead: did serving keep its promises while its device was lent as well as while it was not?
--
-- since (TIMESTAMP): only requests recorded at or after this time, UTC.
-- until (TIMESTAMP): only requests recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Each run has one row for requests that arrived while the device was lent, and one for the others. Compare latencies
-- of two runs only under the same trace and scales. A failed request kept no promise. Percentiles are measured values,
-- in nanoseconds. The two rows differ in load, too: a lease is granted when serving is quiet.
SELECT
    provenance, run_id,
    trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    lent,
    count(*) AS requests,
    count(*) FILTER (outcome = 'failed') AS failed,
    count(*) FILTER (ttft_ok) AS ttft_kept,
    count(*) FILTER (tpot_ok) AS tpot_kept,
    count(*) FILTER (slo_ok) AS slo_kept,
    count(*) FILTER (slo_ok) / count(*) AS slo_share,
    quantile_disc(ttft_ns, 0.5) AS ttft_p50_ns,
    quantile_disc(ttft_ns, 0.99) AS ttft_p99_ns,
    quantile_disc(tpot_mean_ns, 0.5) AS tpot_p50_ns,
    quantile_disc(tpot_mean_ns, 0.99) AS tpot_p99_ns
FROM request
WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY run_id, provenance, lent;
