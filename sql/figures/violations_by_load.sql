-- Serving requests and how many missed a budget, by fifth of the device's serving load (0 to 4) and whether the device
-- was lent when they arrived. A failed request missed its budget.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    least(4, floor(5 * round(s.serving_ns / nullif(s.t1_ns - s.t0_ns, 0), 9)))::INTEGER AS load_bin,
    r.lent,
    count(*) AS requests,
    count_if(NOT coalesce(r.slo_ok, false)) AS violations
FROM request AS r
ASOF JOIN device_slice AS s
    ON r.run_id = s.run_id AND r.device_id = s.device_id AND epoch_us(r."at") * 1000 >= s.t0_ns
WHERE r.run_id = getvariable('run_id')
GROUP BY ALL
ORDER BY ALL;
