-- Serving load and rollout demand of all serving devices together, in windows of `horizon_ns` counted from the Unix
-- epoch: device time that slices report, the part of it that serving worked, the part that rollouts worked or were
-- refused for serving's sake, and the requests that arrived. Nanoseconds of a slice are spread evenly over it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 60_000_000_000;
WITH slice AS (
    SELECT device_id, t0_ns, t1_ns, serving_ns / ns AS load, (rollout_ns + headroom_ns) / ns AS demand
    FROM device_slice AS s
    SEMI JOIN tenure AS t
        ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.pool = 'serving'
       AND t.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(t.left_ns, s.t1_ns)
    WHERE run_id = getvariable('run_id') AND ns > 0
),
piece AS (
    SELECT
        window_no, load, demand,
        least(t1_ns, (window_no + 1) * getvariable('horizon_ns'))
            - greatest(t0_ns, window_no * getvariable('horizon_ns')) AS ns
    FROM slice,
        unnest(range(
            t0_ns // getvariable('horizon_ns'), (t1_ns - 1) // getvariable('horizon_ns') + 1
        )) AS numbers(window_no)
),
arrived AS (
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
FROM piece AS p
LEFT JOIN arrived AS a USING (window_no)
GROUP BY p.window_no
ORDER BY p.window_no;
