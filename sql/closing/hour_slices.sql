-- Slices of one device that lie, with a part at least, in [from_ns, to_ns), in order. Read from the ledger's catalog.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE provenance = 'live'; SET VARIABLE device_id = 'serving-0';
-- SET VARIABLE from_ns = 1793491200000000000; SET VARIABLE to_ns = 1793494800000000000;
SELECT
    writer, seq, lease_id,
    nullif(rollout_run_id, run_id) AS rollout_run_id, nullif(train_run_id, run_id) AS train_run_id,
    t0_ns, t1_ns,
    serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns
FROM device_slice
WHERE run_id = getvariable('run_id')
  AND provenance = getvariable('provenance')
  AND device_id = getvariable('device_id')
  AND t1_ns > t0_ns
  AND t0_ns < getvariable('to_ns')
  AND t1_ns > getvariable('from_ns')
ORDER BY t0_ns, t1_ns;
