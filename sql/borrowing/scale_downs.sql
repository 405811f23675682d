-- Decisions of whoever sizes the fleet that lending had a part in: serving devices kept to be lent, dedicated ones let
-- go.
-- By hand: SET VARIABLE run_id = '...';
SELECT DISTINCT device_id, decision, t0_ns, t1_ns, device_class
FROM scale_down
WHERE run_id = getvariable('run_id') AND t0_ns < t1_ns
ORDER BY ALL;
