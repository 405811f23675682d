-- The run of the same provenance that began last before a run.
-- By hand: SET VARIABLE run_id = '...';
SELECT earlier.run_id
FROM run AS earlier
JOIN run AS later ON later.run_id = getvariable('run_id') AND earlier.provenance = later.provenance
WHERE earlier.started_at < later.started_at
ORDER BY earlier.started_at DESC, earlier.run_id DESC
LIMIT 1;
