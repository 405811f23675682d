-- Slices that no provisioned time of their device holds. A sound ledger has none.
-- By hand: SET VARIABLE run_id = '...';
SELECT device_id, t0_ns, t1_ns, 'lies outside the device''s provisioned time' AS fault
FROM device_slice AS s
WHERE run_id = getvariable('run_id')
  AND s.t1_ns - s.t0_ns > (
        SELECT coalesce(sum(least(coalesce(t.left_ns, s.t1_ns), s.t1_ns) - greatest(t.joined_ns, s.t0_ns)), 0)
        FROM tenure AS t
        WHERE t.run_id = getvariable('run_id')
          AND t.device_id = s.device_id
          AND t.joined_ns < s.t1_ns
          AND coalesce(t.left_ns, s.t1_ns) > s.t0_ns
  )
ORDER BY device_id, t0_ns
LIMIT 20;
