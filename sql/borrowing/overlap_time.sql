-- Time in which serving and rollouts worked on serving devices at once, by stretch between price changes at which the
-- slice began and, if `by_lease`, by lease.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[]; SET VARIABLE by_lease = true;
SELECT
    CASE WHEN getvariable('by_lease') THEN lease_id END AS lease_id,
    len(list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= t0_ns)) AS segment,
    CAST(sum(overlap_ns) AS BIGINT) AS overlap_ns
FROM device_slice
WHERE run_id = getvariable('run_id') AND overlap_ns > 0
  AND device_id IN (SELECT device_id FROM device WHERE run_id = getvariable('run_id') AND pool = 'serving')
GROUP BY ALL
ORDER BY ALL;
