-- How far missed budgets come together: requests (x) and misses (y) summed over each ten minutes of a device, and of
-- those sums how many there are and their squares, by fifth of serving load and whether the device was lent at arrival.
-- By hand: SET VARIABLE run_id = '...';
WITH arrived AS (
    SELECT *, epoch_us(event_time) * 1000 - e2e_ns AS arrival_ns
    FROM request
    WHERE run_id = getvariable('run_id')
),
slice AS (
    SELECT device_id, t0_ns, t1_ns, serving_ns / ns AS load
    FROM device_slice
    WHERE run_id = getvariable('run_id') AND ns > 0
),
stretch AS (
    SELECT
        least(4, floor(5 * round(s.load, 9)))::INTEGER AS load_bin,
        r.lent, r.device_id, r.arrival_ns // 600_000_000_000 AS stretch,
        count(*)::DOUBLE AS x,
        count_if(NOT coalesce(r.slo_ok, false))::DOUBLE AS y
    FROM arrived AS r
    ASOF JOIN slice AS s ON r.device_id = s.device_id AND r.arrival_ns >= s.t0_ns
    WHERE r.arrival_ns < s.t1_ns
    GROUP BY ALL
)
SELECT load_bin, lent, count(*) AS clusters, sum(y * y) AS yy, sum(y * x) AS yx, sum(x * x) AS xx
FROM stretch
GROUP BY ALL
ORDER BY ALL;
