-- The newest 500 weight syncs, newest first: from when each began until it was done. `syncs` is how many there were.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    event_time - to_microseconds(total_ns // 1000) AS began,
    event_time AS done,
    coalesce(device_id, 'unknown') AS device_id,
    policy_version, encoding, ok, reason,
    wire_bytes / 1e6 AS wire_mb,
    dense_bytes / 1e6 AS dense_mb,
    total_ns / 1e6 AS total_ms,
    pause_ns / 1e6 AS pause_ms,
    route,
    count(*) OVER () AS syncs
FROM sync
WHERE getvariable('run_id') IN (run_id, rl_run_id)
ORDER BY event_time DESC, writer, seq
LIMIT 500;
