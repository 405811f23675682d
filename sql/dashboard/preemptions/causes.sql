-- Why serving took something back in [from_ns, to_ns): the 40 commonest causes of each action, `causes` of all, with
-- how often and what was lost; NULL where some did not record it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT
    action,
    reason,
    CAST(sum(coalesce(count, 1)) AS BIGINT) AS preemptions,
    CASE WHEN count(*) = count(requests) THEN CAST(sum(requests) AS BIGINT) END AS requests,
    CASE WHEN count(*) = count(tokens_kept) THEN CAST(sum(tokens_kept) AS BIGINT) END AS tokens_kept,
    CASE WHEN count(*) = count(tokens_lost) THEN CAST(sum(tokens_lost) AS BIGINT) END AS tokens_lost,
    count(*) OVER (PARTITION BY action) AS causes
FROM preemption
WHERE getvariable('run_id') IN (run_id, rl_run_id)
  AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
  AND event_time < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY action, reason
QUALIFY row_number() OVER (PARTITION BY action ORDER BY preemptions DESC, reason) <= 40
ORDER BY action, preemptions DESC, reason;
