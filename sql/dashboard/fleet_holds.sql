-- What kept rollouts that had work from serving devices in [from_ns, to_ns), the longest first.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT reason, CAST(sum(count) AS BIGINT) AS refusals, sum(duration_ns) / 1e9 AS seconds
FROM hold
WHERE getvariable('run_id') IN (run_id, rl_run_id)
  AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
  AND event_time < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY reason
ORDER BY seconds DESC, reason;
