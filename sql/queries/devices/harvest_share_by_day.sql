-- For the infra lead: which share of the time that serving left unused did rollouts harvest, by day?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Serving devices only. Serving, syncs, activation and training leave the time rollout + headroom + idle;
-- `harvested_share` is the rollout part of it. `harvest_of_unused` is rollout time divided by
-- `unused_by_serving_alone_ns`, the time that serving alone would have left: rollout + headroom + idle + (delay of
-- serving's steps - rollout work beside them). The two shares are equal if nothing ran beside serving, as in older
-- ledgers. `harvest_of_unused` exceeds 1 if serving's steps are delayed by less than the work beside them and little
-- time is left. `lent_share` is the share of time under a lease. A slice counts on the day (UTC) on which it begins.
SELECT
    slice.t0::DATE AS day,
    slice.provenance,
    count(DISTINCT slice.device_id) AS devices,
    sum(slice.rollout_ns)::BIGINT AS rollout_ns,
    sum(slice.headroom_ns)::BIGINT AS headroom_ns,
    sum(slice.idle_ns)::BIGINT AS idle_ns,
    sum(slice.ns)::BIGINT AS ns,
    sum(slice.rollout_ns) / nullif(sum(slice.rollout_ns + slice.headroom_ns + slice.idle_ns), 0) AS harvested_share,
    -- The time that serving takes alone is not below 0.
    (
        sum(slice.rollout_ns + slice.headroom_ns + slice.idle_ns)
        + least(sum(coalesce(slice.delayed_ns - slice.beside_work_ns, 0)), sum(slice.serving_ns))
    )::BIGINT AS unused_by_serving_alone_ns,
    sum(slice.rollout_ns) / nullif(unused_by_serving_alone_ns, 0) AS harvest_of_unused,
    coalesce(sum(slice.ns) FILTER (slice.lease_id IS NOT NULL), 0) / nullif(sum(slice.ns), 0) AS lent_share
FROM device_slice AS slice
JOIN device USING (run_id, provenance, device_id)
WHERE device.pool = 'serving'
  AND (getvariable('since') IS NULL OR slice.t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
    AND (getvariable('until') IS NULL OR slice.t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
    AND (getvariable('run_id') IS NULL OR slice.run_id = getvariable('run_id'))
    AND (getvariable('device_id') IS NULL OR slice.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY day, slice.provenance;
