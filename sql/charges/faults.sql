-- Time in the period that slices cover more than once, or while their device was not provisioned, and time over which
-- power was read more than once.
WITH depth AS (
    SELECT
        kind, run_id, provenance, device_id, t_ns AS t0_ns,
        lead(t_ns) OVER device AS t1_ns,
        sum(delta) OVER device AS covered
    FROM (SELECT kind, run_id, provenance, device_id, t_ns, sum(delta) AS delta FROM edge GROUP BY ALL)
    WHERE provenance = getvariable('provenance')
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    WINDOW device AS (PARTITION BY kind, run_id, provenance, device_id ORDER BY t_ns)
)
SELECT d.kind, d.run_id, d.device_id, d.t0_ns, d.t1_ns
FROM depth AS d
LEFT JOIN stay AS s USING (run_id, provenance, device_id)
WHERE d.covered > 0 AND d.t0_ns < getvariable('to_ns') AND d.t1_ns > getvariable('from_ns')
  AND (
      d.covered > 1
      OR d.kind = 'device_slice' AND (s.device_id IS NULL OR d.t0_ns < s.joined_ns OR d.t1_ns > s.end_ns)
  )
ORDER BY ALL;
