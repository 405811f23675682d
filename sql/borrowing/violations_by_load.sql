-- Serving requests and how many missed a budget, by UTC day, fifth of the device's load by serving alone (0 to 4;
-- NULL where no slice covers it) and whether the device was lent, all at their arrival. A failed request missed its
-- budget.
-- By hand: SET VARIABLE run_id = '...';
WITH arrived AS (
    SELECT *, epoch_us(event_time) * 1000 - e2e_ns AS arrival_ns
    FROM request
    WHERE run_id = getvariable('run_id')
),
slice AS (
    SELECT
        device_id, t0_ns, t1_ns, greatest(0, serving_ns - coalesce(delayed_ns - beside_work_ns, 0)) / ns AS load
    FROM device_slice
    WHERE run_id = getvariable('run_id') AND ns > 0
)
SELECT
    CAST(make_timestamp(r.arrival_ns // 1000) AS DATE) AS day,
    CASE WHEN r.arrival_ns < s.t1_ns THEN least(4, floor(5 * round(s.load, 9)))::INTEGER END AS load_bin,
    r.lent,
    count(*) AS requests,
    count_if(NOT coalesce(r.slo_ok, false)) AS violations
FROM arrived AS r
ASOF LEFT JOIN slice AS s ON r.device_id = s.device_id AND r.arrival_ns >= s.t0_ns
GROUP BY ALL
ORDER BY ALL;
