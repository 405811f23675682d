-- Lent time of serving devices by UTC day, by lease if `by_lease`, and by fifth of serving load of the window it lies
-- in (NULL where that is not known). Reads the table `serving_window`, which `burst_risk` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 10_000_000_000; SET VARIABLE by_lease = true;
WITH piece AS (
    SELECT
        s.device_id, s.lease_id, window_no,
        least(s.t1_ns, (window_no + 1) * getvariable('horizon_ns'))
            - greatest(s.t0_ns, window_no * getvariable('horizon_ns')) AS ns
    FROM device_slice AS s
    SEMI JOIN tenure AS t
        ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.pool = 'serving'
       AND t.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(t.left_ns, s.t1_ns)
    CROSS JOIN unnest(range(
        s.t0_ns // getvariable('horizon_ns'), (s.t1_ns - 1) // getvariable('horizon_ns') + 1
    )) AS numbers(window_no)
    WHERE s.run_id = getvariable('run_id') AND s.lease_id IS NOT NULL AND s.ns > 0
)
SELECT
    CAST(make_timestamp(p.window_no * getvariable('horizon_ns') // 1000) AS DATE) AS day,
    CASE WHEN getvariable('by_lease') THEN p.lease_id END AS lease_id,
    w.bin,
    CAST(sum(p.ns) AS BIGINT) AS lent_ns
FROM piece AS p
LEFT JOIN serving_window AS w USING (device_id, window_no)
GROUP BY ALL
ORDER BY ALL;
