-- For the infra lead: at which hours is serving busy, and at which is there time to lend?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Serving devices only, by hour (UTC). The three shares are of all device time. They leave out syncs, activation and
-- training, so they may sum to less than 1. `rollout_share` is the time of rollouts.
SELECT
    date_trunc('hour', slice.t0) AS hour,
    slice.provenance,
    count(DISTINCT slice.device_id) AS devices,
    sum(slice.ns)::BIGINT AS ns,
    sum(slice.serving_ns) / nullif(sum(slice.ns), 0) AS serving_share,
    sum(slice.rollout_ns) / nullif(sum(slice.ns), 0) AS rollout_share,
    sum(slice.headroom_ns + slice.idle_ns) / nullif(sum(slice.ns), 0) AS unused_share
FROM device_slice AS slice
JOIN device USING (run_id, provenance, device_id)
WHERE device.pool = 'serving'
  AND (getvariable('since') IS NULL OR slice.t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
    AND (getvariable('until') IS NULL OR slice.t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
    AND (getvariable('run_id') IS NULL OR slice.run_id = getvariable('run_id'))
    AND (getvariable('device_id') IS NULL OR slice.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY hour, slice.provenance;
