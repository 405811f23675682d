-- Weight syncs to one device in [from_ns, to_ns), and its power readings that lie there with a part at least. Read from
-- the ledger's catalog.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE provenance = 'live'; SET VARIABLE device_id = 'serving-0';
-- SET VARIABLE from_ns = 1793491200000000000; SET VARIABLE to_ns = 1793494800000000000;
SELECT
    kind, writer, seq, at_us, nullif(rl_run_id, run_id) AS rl_run_id, route, policy_version, wire_bytes,
    t0_ns, t1_ns, power_mw
FROM event
WHERE run_id = getvariable('run_id')
  AND provenance = getvariable('provenance')
  AND device_id = getvariable('device_id')
  AND CASE kind
      WHEN 'sync' THEN at_us >= getvariable('from_ns') // 1000 AND at_us < getvariable('to_ns') // 1000
          AND (coalesce(policy_version, 0) | coalesce(base_version, 0) | wire_bytes | dense_bytes |
              coalesce(changed_elements, 0) | coalesce(total_elements, 0) | coalesce(encode_ns, 0) |
              coalesce(fetch_ns, 0) | coalesce(verify_ns, 0) | coalesce(stage_ns, 0) | coalesce(pause_ns, 0) |
              coalesce(acknowledge_ns, 0) | total_ns | coalesce(step, 0)) BETWEEN 0 AND 36028797018963967
      WHEN 'power' THEN power_mw IS NOT NULL AND t1_ns > t0_ns
          AND t0_ns < getvariable('to_ns') AND t1_ns > getvariable('from_ns')
          AND CASE WHEN (coalesce(policy_version, 0) | coalesce(power_mw, 0) | coalesce(energy_mj, 0) |
              coalesce(package_energy_mj, 0) | coalesce(memory_used_bytes, 0) | coalesce(sm_clock_mhz, 0) |
              coalesce(mig_instances, 0)) BETWEEN 0 AND 36028797018963967 AND (t0_ns | t1_ns) BETWEEN 0 AND
              4611686018427387903 THEN t0_ns <= t1_ns AND t1_ns - t0_ns <= 36028797018963967 ELSE false END AND
              coalesce(isfinite(busy_share), true)
      ELSE false END
ORDER BY writer, seq;
