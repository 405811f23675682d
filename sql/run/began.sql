-- When a run began, UTC nanoseconds since the Unix epoch. One row.
-- By hand: SET VARIABLE run_id = '...';
SELECT epoch_ns(min(coalesce(started_at, event_time))) AS began_ns
FROM run
WHERE run_id = getvariable('run_id');
