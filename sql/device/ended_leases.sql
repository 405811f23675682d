-- The leases of device $device_id in run $run_id that ended at $until_ns or later, UTC nanoseconds.
SELECT lease_id, 1000 * epoch_us(granted_at) AS granted_ns, 1000 * epoch_us(closed_at) AS closed_ns
FROM lease
WHERE run_id = $run_id AND device_id = $device_id AND closed_at >= make_timestamp($until_ns // 1000)
ORDER BY granted_at;
