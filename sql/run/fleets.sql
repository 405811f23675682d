-- Runs that share a fleet with the run `run_id`, as (RL run, the fleet's run): the fleets that it is on if it is an RL
-- run, the RL runs on it if it is a fleet's. None for a run that has devices to itself.
-- By hand: SET VARIABLE run_id = '...';
SELECT DISTINCT run_id, fleet_run_id
FROM event
WHERE kind = 'run' AND fleet_run_id <> run_id AND getvariable('run_id') IN (run_id, fleet_run_id)
ORDER BY ALL;
