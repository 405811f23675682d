-- `preemption_totals` from the daily sums, for a run of many days.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    action,
    CAST(sum(preemptions) AS BIGINT) AS preemptions,
    coalesce(sum(duration_ns), 0) AS waited_ns,
    coalesce(sum(requests), 0) AS requests,
    coalesce(sum(tokens_kept), 0) AS tokens_kept,
    coalesce(sum(tokens_lost), 0) AS tokens_lost
FROM daily_preemption
WHERE run_id = getvariable('run_id')
GROUP BY action
ORDER BY action;
