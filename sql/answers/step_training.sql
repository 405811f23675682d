-- Time of the update of each RL step, nanoseconds, in the order of the steps.
-- By hand: SET VARIABLE run_id = '...';
SELECT step, sum(train_ns) AS train_ns
FROM step
WHERE run_id = getvariable('run_id')
GROUP BY step
ORDER BY step;
