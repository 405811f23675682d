-- `preemption_bins` from the daily sums, for a run of many days: a bin is a UTC day.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    coalesce(device_id, 'unknown') AS device_id,
    action,
    CAST(day AS TIMESTAMP) AS t,
    CAST(sum(preemptions) AS BIGINT) AS preemptions,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) / 1e6 END AS waited_ms,
    CASE WHEN count(*) = count(tokens_lost) THEN sum(tokens_lost) END AS tokens_lost
FROM daily_preemption
WHERE getvariable('run_id') IN (run_id, rl_run_id)
GROUP BY ALL
ORDER BY ALL;
