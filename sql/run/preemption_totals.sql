-- Preemptions by action; a sum of what some did not record is NULL.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    action,
    coalesce(sum(coalesce(count, 1)), 0)::BIGINT AS preemptions,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) END AS waited_ns,
    CASE WHEN count(*) = count(requests) THEN sum(requests) END AS requests,
    CASE WHEN count(*) = count(tokens_kept) THEN sum(tokens_kept) END AS tokens_kept,
    CASE WHEN count(*) = count(tokens_lost) THEN sum(tokens_lost) END AS tokens_lost
FROM preemption
WHERE getvariable('run_id') IN (run_id, rl_run_id)
GROUP BY action
ORDER BY action;
