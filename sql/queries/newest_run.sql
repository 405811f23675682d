-- The run that began last.
SELECT run_id
FROM event
WHERE kind = 'run' AND action = 'started'
ORDER BY at DESC, run_id DESC
LIMIT 1;
