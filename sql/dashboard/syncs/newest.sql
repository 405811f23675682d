-- The newest 500 weight syncs that ended in [from_ns, to_ns), newest first: from when each began until it was done.
-- `syncs` is how many there were.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT
    event_time - to_microseconds(total_ns // 1000) AS began,
    event_time AS done,
    coalesce(device_id, 'unknown') AS device_id,
    engine_id, policy_version, encoding, ok, reason,
    wire_bytes / 1e6 AS wire_mb,
    dense_bytes / 1e6 AS dense_mb,
    total_ns / 1e6 AS total_ms,
    pause_ns / 1e6 AS pause_ms,
    source, route,
    count(*) OVER () AS syncs
FROM sync
WHERE getvariable('run_id') IN (run_id, rl_run_id)
  AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
  AND event_time < make_timestamp(getvariable('to_ns') // 1000)
ORDER BY event_time DESC, writer, seq
LIMIT 500;
