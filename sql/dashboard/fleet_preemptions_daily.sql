-- `fleet_preemptions` from the daily sums, for a time of many days: a bin is a UTC day. A day's sum of tokens does not
-- say whether some were not recorded, so it is not given.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT
    action,
    CAST(day AS TIMESTAMP) AS t,
    CAST(sum(preemptions) AS BIGINT) AS preemptions,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) / 1e6 END AS waited_ms,
    CAST(NULL AS BIGINT) AS tokens_kept,
    CAST(NULL AS BIGINT) AS tokens_lost
FROM daily_preemption
WHERE getvariable('run_id') IN (run_id, rl_run_id)
  AND day >= CAST(make_timestamp(getvariable('from_ns') // 1000) AS DATE)
  AND day <= CAST(make_timestamp((getvariable('to_ns') - 1) // 1000) AS DATE)
GROUP BY ALL
ORDER BY ALL;
