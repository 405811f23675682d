-- Preemptions over time by device and action, in at most 200 bins of a second or more, with how long rollouts waited.
-- By hand: SET VARIABLE run_id = '...';
WITH span AS (
    SELECT
        min(epoch_us(event_time)) AS from_us,
        greatest(1000000, (max(epoch_us(event_time)) - min(epoch_us(event_time))) // 200 + 1) AS bin_us
    FROM preemption
    WHERE getvariable('run_id') IN (run_id, rl_run_id)
)
SELECT
    coalesce(device_id, 'unknown') AS device_id,
    action,
    make_timestamp(from_us + bin_us * ((epoch_us(event_time) - from_us) // bin_us)) AS t,
    sum(coalesce(count, 1))::BIGINT AS preemptions,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) / 1e6 END AS waited_ms,
    CASE WHEN count(*) = count(tokens_lost) THEN sum(tokens_lost) END AS tokens_lost
FROM preemption, span
WHERE getvariable('run_id') IN (run_id, rl_run_id)
GROUP BY ALL
ORDER BY ALL;
