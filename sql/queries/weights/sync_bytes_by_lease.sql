-- For the finance lead: how many bytes did each lease cost in weight syncs, over which route?
--
-- since (TIMESTAMP): only syncs at or after this time, UTC.
-- until (TIMESTAMP): only syncs before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- A sync counts for its lease. A sync outside of a lease counts for the next lease granted on its device, because it
-- was done for that lease. `lease_id` is NULL on dedicated devices and after the last lease. `saved_share` is what
-- deltas saved against sending the weights whole, 0 to 1. Failed syncs moved bytes, too.
SELECT
    sync.provenance, sync.run_id, sync.device_id, device.pool,
    coalesce(sync.lease_id, lease.lease_id) AS lease_id,
    sync.route,
    count(*) AS syncs,
    count(*) FILTER (NOT sync.ok) AS failed,
    sum(sync.wire_bytes)::BIGINT AS wire_bytes,
    sum(sync.dense_bytes)::BIGINT AS dense_bytes,
    1 - sum(sync.wire_bytes) / nullif(sum(sync.dense_bytes), 0) AS saved_share,
    sum(sync.total_ns)::BIGINT AS total_ns
FROM sync
ASOF LEFT JOIN lease
    ON sync.run_id = lease.run_id AND sync.provenance = lease.provenance AND sync.device_id = lease.device_id
   AND sync.event_time <= lease.granted_at
LEFT JOIN device
    ON device.run_id = sync.run_id AND device.provenance = sync.provenance AND device.device_id = sync.device_id
WHERE (getvariable('since') IS NULL OR sync.event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR sync.event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (sync.run_id, sync.rl_run_id))
  AND (getvariable('device_id') IS NULL OR sync.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY wire_bytes DESC, sync.run_id, sync.provenance, sync.device_id, lease_id, sync.route;
