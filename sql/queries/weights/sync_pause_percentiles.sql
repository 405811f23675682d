-- For the RL engineer: how long does a weight sync stop an engine, and how long does it take in all?
--
-- since (TIMESTAMP): only syncs at or after this time, UTC.
-- until (TIMESTAMP): only syncs before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Only syncs that reached their version; `sync_failures` has the others. `pause` is the time in which the engine stood
-- still, and `total` is the whole time. Percentiles are measured values, in nanoseconds.
SELECT
    sync.provenance, sync.run_id, device.pool, sync.encoding, sync.route,
    count(*) AS syncs,
    quantile_disc(sync.pause_ns, 0.5) AS pause_p50_ns,
    quantile_disc(sync.pause_ns, 0.9) AS pause_p90_ns,
    quantile_disc(sync.pause_ns, 0.99) AS pause_p99_ns,
    max(sync.pause_ns) AS pause_max_ns,
    quantile_disc(sync.total_ns, 0.5) AS total_p50_ns,
    quantile_disc(sync.total_ns, 0.99) AS total_p99_ns,
    max(sync.total_ns) AS total_max_ns
FROM sync
LEFT JOIN device USING (run_id, provenance, device_id)
WHERE sync.ok
  AND (getvariable('since') IS NULL OR sync.event_time >= getvariable('since')::TIMESTAMP)
    AND (getvariable('until') IS NULL OR sync.event_time < getvariable('until')::TIMESTAMP)
    AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (sync.run_id, sync.rl_run_id))
    AND (getvariable('device_id') IS NULL OR sync.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY sync.run_id, sync.provenance, pool, sync.encoding, sync.route;
