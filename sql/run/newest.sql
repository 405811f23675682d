-- The run that began last among those that have events of the kind `needs`; where no run has any, the one that began
-- last. Devices are the fleet's own, so a fleet's run is the one to report; verdicts are of the run that trains.
-- By hand: SET VARIABLE needs = 'device';
SELECT run_id
FROM run
ORDER BY run_id IN (SELECT run_id FROM daily_event WHERE kind = getvariable('needs')) DESC, started_at DESC, run_id DESC
LIMIT 1;
