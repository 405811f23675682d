-- The run that began last.
SELECT run_id
FROM run
ORDER BY started_at DESC, run_id DESC
LIMIT 1;
