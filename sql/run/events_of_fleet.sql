-- The events of a fleet and of the RL runs that share it, as if they were of one run. What RL runs may call the same
-- has the name of the RL run before it.
-- By hand: SET VARIABLE run_id = '...';
WITH tenant AS (
    SELECT DISTINCT run_id
    FROM event
    WHERE kind = 'run' AND fleet_run_id = getvariable('run_id') AND run_id <> getvariable('run_id')
),
-- An RL run that went on on another fleet made other trajectories there.
made AS (
    SELECT DISTINCT run_id, trajectory_id FROM event WHERE kind = 'turn' AND fleet_run_id = getvariable('run_id')
),
-- Its decisions belong to the fleet that it was on last.
last AS (
    SELECT run_id FROM event SEMI JOIN tenant USING (run_id) WHERE kind = 'run'
    GROUP BY run_id HAVING arg_max(fleet_run_id, (at_us, writer, seq)) = getvariable('run_id')
)
SELECT * FROM event WHERE run_id = getvariable('run_id')
UNION ALL BY NAME
SELECT
    * REPLACE (
        getvariable('run_id') AS run_id,
        run_id || '/' || event_id AS event_id,
        run_id || '/' || trajectory_id AS trajectory_id,
        run_id || '/' || group_id AS group_id
    )
FROM event
SEMI JOIN tenant USING (run_id)
WHERE kind = 'turn' AND fleet_run_id = getvariable('run_id')
   OR kind IN ('trajectory', 'verdict') AND (run_id, trajectory_id) IN (FROM made)
   OR kind = 'scale_down' AND run_id IN (FROM last);
