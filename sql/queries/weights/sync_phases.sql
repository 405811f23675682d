-- For the RL engineer: where does the time of a weight sync go, from the publisher to the acknowledgement?
--
-- since (TIMESTAMP): only syncs at or after this time, UTC.
-- until (TIMESTAMP): only syncs before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Only syncs that reached their version. Medians of each phase, measured values, in nanoseconds; NULL if no sync has
-- the phase. `encode` is the publisher's time, spent once for all engines and before `total` begins. If `verify` is
-- NULL, `fetch` includes the check of what came. `stage` runs beside the running engine, which stands still only for
-- `pause`.
SELECT
    sync.provenance, sync.run_id, sync.encoding, sync.source, sync.route,
    count(*) AS syncs,
    sum(sync.wire_bytes)::BIGINT AS wire_bytes,
    quantile_disc(sync.encode_ns, 0.5) AS encode_p50_ns,
    quantile_disc(sync.fetch_ns, 0.5) AS fetch_p50_ns,
    quantile_disc(sync.verify_ns, 0.5) AS verify_p50_ns,
    quantile_disc(sync.stage_ns, 0.5) AS stage_p50_ns,
    quantile_disc(sync.pause_ns, 0.5) AS pause_p50_ns,
    quantile_disc(sync.acknowledge_ns, 0.5) AS acknowledge_p50_ns,
    quantile_disc(sync.total_ns, 0.5) AS total_p50_ns
FROM sync
WHERE sync.ok
  AND (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (sync.run_id, sync.rl_run_id))
  AND (getvariable('device_id') IS NULL OR sync.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY sync.run_id, sync.provenance, sync.encoding, sync.source, sync.route;
