-- Time in the period that slices cover more than once, or while their device was not provisioned, and time over which
-- power was read more than once, or of a device that never joined.
WITH depth AS (
    SELECT
        kind, unit, t_ns AS t0_ns,
        lead(t_ns) OVER device AS t1_ns,
        sum(delta) OVER device AS covered
    FROM (SELECT kind, unit, t_ns, sum(delta) AS delta FROM edge SEMI JOIN stay USING (unit) GROUP BY ALL)
    WINDOW device AS (PARTITION BY kind, unit ORDER BY t_ns)
)
SELECT d.kind, s.run_id, s.device_id, d.t0_ns, d.t1_ns, d.covered > 1 AS twice
FROM depth AS d
JOIN stay AS s USING (unit)
WHERE d.covered > 0 AND d.t0_ns < getvariable('to_ns') AND d.t1_ns > getvariable('from_ns')
  AND (
      d.covered > 1
      OR s.joined_ns IS NULL
      OR d.kind = 'device_slice' AND (d.t0_ns < s.joined_ns OR d.t1_ns > s.end_ns)
  )
ORDER BY ALL;
