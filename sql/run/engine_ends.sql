-- Engines of a run that ended without being stopped, in the order in which it was noticed: `ended_ns` is when it
-- was seen to have died, NULL if what keeps it had died too; `restarted_ns` when it answered again, NULL if it did not.
-- For an RL run that shares a fleet: engines on devices that it had last, until its own end: a lease
-- ends just before its engine's death is recorded. Reads the tables `own_time` and `other_run_slice`, which
-- `time_on_fleet` makes.
-- By hand: SET VARIABLE run_id = '...';
WITH life AS (
    SELECT
        fleet_run_id, device_id, engine_id, action, reason, epoch_ns(event_time) AS at_ns,
        lag(action) OVER of_engine AS before, lead(action) OVER of_engine AS next, lead(at_ns) OVER of_engine AS next_ns
    FROM engine
    WHERE run_id = getvariable('run_id') AND action IN ('started', 'attached', 'stopped', 'detached', 'died')
    WINDOW of_engine AS (PARTITION BY fleet_run_id, engine_id ORDER BY event_time, writer, seq)
),
ends AS (
    SELECT
        fleet_run_id, device_id, at_ns, coalesce(engine_id, 'unknown') AS engine_id, at_ns AS ended_ns,
        CASE WHEN next IN ('started', 'attached') THEN next_ns END AS restarted_ns,
        coalesce(reason, 'not known') AS reason
    FROM life
    WHERE action = 'died'
    UNION ALL BY NAME
    SELECT
        fleet_run_id, device_id, at_ns, engine_id, NULL AS ended_ns, at_ns AS restarted_ns,
        'its agent died' AS reason
    FROM life
    -- An engine that was attached lives on when its agent dies.
    WHERE action = 'started' AND before = 'started'
)
SELECT engine_id, ended_ns, restarted_ns, reason
FROM ends AS e
WHERE NOT EXISTS (FROM own_time)
   OR at_ns <= coalesce((SELECT epoch_ns(max(ended_at)) FROM run WHERE run_id = getvariable('run_id')), at_ns)
  AND EXISTS (
      FROM own_time AS o
      WHERE o.run_id = e.fleet_run_id AND o.device_id = e.device_id AND o.from_ns <= e.at_ns
        AND coalesce(e.at_ns < o.next_ns, true)
  )
  AND NOT EXISTS (
      FROM other_run_slice AS s
      WHERE s.run_id = e.fleet_run_id AND s.device_id = e.device_id AND s.t0_ns <= e.at_ns AND e.at_ns < s.t1_ns
  )
ORDER BY at_ns, engine_id;
