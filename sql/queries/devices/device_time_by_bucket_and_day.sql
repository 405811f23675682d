-- For the infra lead: where did the time of each device go, by day and bucket?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- The seven buckets sum to `ns` exactly. A slice counts on the day (UTC) on which it begins. If `ns` is less than a
-- day, the device joined or left on that day, or has gaps: `unaccounted_device_time` shows the gaps.
SELECT
    slice.t0::DATE AS day,
    slice.provenance,
    slice.device_id,
    device.pool,
    sum(slice.serving_ns)::BIGINT AS serving_ns,
    sum(slice.rollout_ns)::BIGINT AS rollout_ns,
    sum(slice.train_ns)::BIGINT AS train_ns,
    sum(slice.sync_ns)::BIGINT AS sync_ns,
    sum(slice.activation_ns)::BIGINT AS activation_ns,
    sum(slice.headroom_ns)::BIGINT AS headroom_ns,
    sum(slice.idle_ns)::BIGINT AS idle_ns,
    sum(slice.ns)::BIGINT AS ns
FROM device_slice AS slice
LEFT JOIN device USING (run_id, provenance, device_id)
WHERE (getvariable('since') IS NULL OR slice.t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
  AND (getvariable('until') IS NULL OR slice.t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
  AND (getvariable('run_id') IS NULL OR slice.run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR slice.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY day, slice.provenance, slice.device_id, pool;
