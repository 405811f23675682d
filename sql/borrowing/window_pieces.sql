-- Slices of serving devices cut into windows of `horizon_ns`, counted from the Unix epoch, kept as the table
-- `window_piece`. `load` is the share of the slice that serving alone would have worked, without its delay beside
-- rollouts, `demand` the share that rollouts worked or were refused for serving's sake. Nanoseconds of a slice are
-- spread evenly over it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 10_000_000_000;
CREATE OR REPLACE TEMP TABLE window_piece AS
SELECT
    device_id, lease_id, window_no,
    greatest(0, serving_ns - coalesce(delayed_ns - beside_work_ns, 0)) / s.ns AS load,
    (rollout_ns + headroom_ns) / s.ns AS demand,
    least(t1_ns, (window_no + 1) * getvariable('horizon_ns'))
        - greatest(t0_ns, window_no * getvariable('horizon_ns')) AS ns
FROM device_slice AS s
SEMI JOIN tenure AS t
    ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.pool = 'serving'
   AND t.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(t.left_ns, s.t1_ns)
CROSS JOIN unnest(range(
    t0_ns // getvariable('horizon_ns'), (t1_ns - 1) // getvariable('horizon_ns') + 1
)) AS numbers(window_no)
WHERE s.run_id = getvariable('run_id') AND s.ns > 0;
