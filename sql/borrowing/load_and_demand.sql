-- Serving load and rollout demand of all serving devices together, by window: device time that slices report, the part
-- of it that serving worked, the part that rollouts worked or were refused for serving's sake, and the requests that
-- arrived. Reads the table `window_piece`, which `window_pieces` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 60_000_000_000;
WITH arrived AS (
    SELECT (epoch_us(event_time) * 1000 - e2e_ns) // getvariable('horizon_ns') AS window_no, count(*) AS requests
    FROM request
    WHERE run_id = getvariable('run_id')
    GROUP BY ALL
)
SELECT
    p.window_no,
    CAST(sum(p.ns) AS BIGINT) AS ns,
    sum(p.ns * p.load) / sum(p.ns) AS load,
    sum(p.ns * p.demand) / sum(p.ns) AS demand,
    any_value(coalesce(a.requests, 0)) AS requests
FROM window_piece AS p
LEFT JOIN arrived AS a USING (window_no)
GROUP BY p.window_no
ORDER BY p.window_no;
