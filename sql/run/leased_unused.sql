-- Idle time of serving devices inside of their leases: lent to rollouts, which had nothing to do there.
-- By hand: SET VARIABLE run_id = '...';
SELECT coalesce(sum(slice.idle_ns), 0)::BIGINT AS leased_unused_ns
FROM device_slice AS slice
JOIN device USING (run_id, provenance, device_id)
WHERE slice.run_id = getvariable('run_id') AND device.pool = 'serving' AND slice.lease_id IS NOT NULL;
