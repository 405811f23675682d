-- Time in which serving and rollouts worked on serving devices at once, by stretch between price changes at which the
-- slice began and, if `by_lease`, by lease.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[]; SET VARIABLE by_lease = true;
SELECT
    CASE WHEN getvariable('by_lease') THEN lease_id END AS lease_id,
    len(list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= t0_ns)) AS segment,
    CAST(sum(overlap_ns) AS BIGINT) AS overlap_ns
FROM device_slice AS s
SEMI JOIN tenure AS t
    ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.pool = 'serving'
   AND t.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(t.left_ns, s.t1_ns)
WHERE run_id = getvariable('run_id') AND overlap_ns > 0
GROUP BY ALL
ORDER BY ALL;
