-- For the infra lead: how much time was lent to rollouts and not used by them, by device and day?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `unused_ns` is idle time under a lease: serving left it, and the rollouts that the device was lent to had nothing to
-- do there. `held_ns` is headroom under a lease: a rollout wanted it and was held for serving's sake. `leased_ns` is
-- all time under a lease; for an RL run that shares a fleet, while the run had the lease. A slice ends wherever a lease
-- begins or ends, so nothing is estimated. It counts on the day (UTC) on which it begins.
SELECT
    date_trunc('day', slice.t0)::DATE AS day,
    slice.provenance, slice.device_id,
    sum(slice.idle_ns)::BIGINT AS unused_ns,
    sum(slice.headroom_ns)::BIGINT AS held_ns,
    sum(slice.ns)::BIGINT AS leased_ns,
    sum(slice.idle_ns) / nullif(sum(slice.ns), 0) AS unused_share
FROM device_slice AS slice
JOIN device USING (run_id, provenance, device_id)
WHERE device.pool = 'serving' AND slice.lease_id IS NOT NULL
  AND (getvariable('since') IS NULL OR slice.t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
    AND (getvariable('until') IS NULL OR slice.t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
    AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (slice.run_id, slice.rollout_run_id))
    AND (getvariable('device_id') IS NULL OR slice.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY day, slice.provenance, slice.device_id;
