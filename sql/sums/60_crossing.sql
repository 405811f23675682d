-- New slices and power readings that cross the end of a UTC hour.
SELECT
    'device_slice' AS kind, unit, lease_id, rollout_run_id, train_run_id, writer, seq, t0_ns, t1_ns, NULL AS power_mw,
    serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns
FROM new_slice
WHERE t0_ns // 3600000000000 < (t1_ns - 1) // 3600000000000
UNION ALL BY NAME
SELECT kind, unit, writer, seq, t0_ns, t1_ns, power_mw
FROM new_other
WHERE kind = 'power' AND t0_ns // 3600000000000 < (t1_ns - 1) // 3600000000000;
