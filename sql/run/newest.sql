-- The run that began last, and the run of the fleet that it is on: itself where it is on none that is known.
SELECT
    run_id,
    coalesce((SELECT any_value(f.run_id) FROM run AS f WHERE f.run_id = r.fleet_run_id), run_id) AS fleet_run_id
FROM run AS r
ORDER BY started_at DESC, run_id DESC
LIMIT 1;
