-- The leases of device $device_id in run $run_id that ended at $until_ns or later, UTC nanoseconds; granted_ns is NULL
-- for one that was granted before.
SELECT
    lease_id,
    1000 * min(at_us) FILTER (action = 'granted') AS granted_ns,
    1000 * min(at_us) FILTER (action IN ('released', 'preempted', 'expired')) AS closed_ns
FROM event
WHERE kind = 'lease' AND run_id = $run_id AND device_id = $device_id AND at_us >= $until_ns // 1000
GROUP BY lease_id
HAVING closed_ns IS NOT NULL
ORDER BY closed_ns;
