-- Time in the period that slices of a run cover more than once, or while their device was not provisioned, and time
-- over which power was read more than once, or of a device that never joined.
WITH depth AS (
    SELECT
        kind, unit, t_ns AS t0_ns,
        lead(t_ns) OVER device AS t1_ns,
        sum(delta) OVER device AS covered
    FROM (SELECT kind, unit, t_ns, sum(delta) AS delta FROM edge SEMI JOIN stay USING (unit) GROUP BY ALL)
    WINDOW device AS (PARTITION BY kind, unit ORDER BY t_ns)
),
covering AS (
    FROM depth
    WHERE covered > 0 AND t0_ns < getvariable('to_ns') AND t1_ns > getvariable('from_ns')
)
SELECT c.kind, s.run_id, s.device_id, c.t0_ns, c.t1_ns, c.covered > 1 AS twice
FROM covering AS c
JOIN stay AS s ON c.unit = s.unit
ASOF LEFT JOIN held AS h ON c.unit = h.unit AND c.t0_ns >= h.t0_ns
WHERE c.covered > 1 OR NOT s.joined OR c.kind = 'device_slice' AND c.t1_ns > coalesce(h.t1_ns, 0)
ORDER BY ALL;
