-- For the RL engineer: how long do turns wait for an engine, by step?
--
-- since (TIMESTAMP): only turns recorded at or after this time, UTC.
-- until (TIMESTAMP): only turns recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `waited` counts attempts that the router could place nowhere at first (placement `queue`). Percentiles are measured
-- values over all attempts, in nanoseconds.
SELECT
    provenance, run_id, step,
    count(*) AS attempts,
    count(*) FILTER (placement = 'queue') AS waited,
    quantile_disc(queue_ns, 0.5) AS queue_p50_ns,
    quantile_disc(queue_ns, 0.9) AS queue_p90_ns,
    quantile_disc(queue_ns, 0.99) AS queue_p99_ns,
    max(queue_ns) AS queue_max_ns
FROM turn
WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY run_id, provenance, step;
