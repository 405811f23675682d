-- For the infra lead: how much time of serving devices went unused while nothing was lent, by device and hour?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `unused_ns` is idle and headroom time without a lease: the most that one more lease could have used, whatever that
-- would cost serving. `unlent_ns` is all time without a lease, and `ns` is all time. A slice ends wherever a lease
-- begins or ends, so nothing is estimated. It counts in the hour (UTC) in which it begins.
SELECT
    date_trunc('hour', slice.t0) AS hour,
    slice.provenance, slice.device_id,
    coalesce(sum(slice.idle_ns) FILTER (slice.lease_id IS NULL), 0)::BIGINT AS idle_ns,
    coalesce(sum(slice.headroom_ns) FILTER (slice.lease_id IS NULL), 0)::BIGINT AS headroom_ns,
    coalesce(sum(slice.idle_ns + slice.headroom_ns) FILTER (slice.lease_id IS NULL), 0)::BIGINT AS unused_ns,
    coalesce(sum(slice.ns) FILTER (slice.lease_id IS NULL), 0)::BIGINT AS unlent_ns,
    sum(slice.ns)::BIGINT AS ns
FROM device_slice AS slice
JOIN device USING (run_id, provenance, device_id)
WHERE device.pool = 'serving'
  AND (getvariable('since') IS NULL OR slice.t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
    AND (getvariable('until') IS NULL OR slice.t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
    AND (getvariable('run_id') IS NULL OR slice.run_id = getvariable('run_id'))
    AND (getvariable('device_id') IS NULL OR slice.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY hour, slice.provenance, slice.device_id;
