-- Slices that would count a nanosecond twice (they begin before an earlier one of the device ends) or that no
-- provisioned time of their device holds. A sound ledger has none.
-- By hand: SET VARIABLE run_id = '...';
WITH ordered AS (
    SELECT
        device_id, t0_ns, t1_ns,
        max(t1_ns) OVER (
            PARTITION BY device_id ORDER BY t0_ns, t1_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to_ns
    FROM device_slice
    WHERE run_id = getvariable('run_id')
)
SELECT
    device_id, t0_ns, t1_ns,
    CASE WHEN t0_ns < covered_to_ns THEN 'overlaps a slice that ends at ' || covered_to_ns
         ELSE 'lies outside the device''s provisioned time' END AS fault
FROM ordered AS s
WHERE t0_ns < covered_to_ns
   OR s.t1_ns - s.t0_ns > (
        SELECT coalesce(sum(least(coalesce(t.left_ns, s.t1_ns), s.t1_ns) - greatest(t.joined_ns, s.t0_ns)), 0)
        FROM tenure AS t
        WHERE t.run_id = getvariable('run_id')
          AND t.device_id = s.device_id
          AND t.joined_ns < s.t1_ns
          AND coalesce(t.left_ns, s.t1_ns) > s.t0_ns
   )
ORDER BY device_id, t0_ns
LIMIT 20;
