-- The newest 200 preemptions, newest first.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    event_time, action, device_id, reason, coalesce(count, 1) AS times, duration_ns / 1e6 AS waited_ms, requests,
    tokens_kept,
    tokens_lost, lease_id
FROM preemption
WHERE getvariable('run_id') IN (run_id, rl_run_id)
ORDER BY event_time DESC, writer, seq
LIMIT 200;
