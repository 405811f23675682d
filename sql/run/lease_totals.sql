-- Leases on serving devices by how they closed. Of RL runs that share a fleet each lease counts for the one that it was
-- first granted for, so that those of all are the fleet's; `borrowing/lease_spans` says how much of it each had.
-- By hand: SET VARIABLE run_id = '...';
SELECT coalesce(closed_by, 'open') AS closing, count(*) AS leases
FROM lease
WHERE rl_run_id = getvariable('run_id')
   OR run_id = getvariable('run_id')
  AND run_id = (SELECT any_value(fleet_run_id) FROM run WHERE run.run_id = getvariable('run_id'))
GROUP BY ALL
ORDER BY ALL;
