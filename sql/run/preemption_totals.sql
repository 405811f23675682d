-- Preemptions by action.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    action,
    coalesce(sum(coalesce(count, 1)), 0)::BIGINT AS preemptions,
    coalesce(sum(duration_ns), 0) AS waited_ns,
    coalesce(sum(requests), 0) AS requests,
    coalesce(sum(tokens_kept), 0) AS tokens_kept,
    coalesce(sum(tokens_lost), 0) AS tokens_lost
FROM preemption
WHERE run_id = getvariable('run_id')
GROUP BY action
ORDER BY action;
