-- Engines of a run that ended although nobody stopped them, in the order in which it was noticed: `ended_ns` is when it
-- was seen to have died, NULL if what keeps it had died too; `restarted_ns` when it answered again, NULL if it did not.
-- By hand: SET VARIABLE run_id = '...';
WITH life AS (
    SELECT
        engine_id, action, reason, epoch_ns(event_time) AS at_ns,
        lag(action) OVER of_engine AS before, lead(action) OVER of_engine AS next, lead(at_ns) OVER of_engine AS next_ns
    FROM engine
    WHERE run_id = getvariable('run_id') AND action IN ('started', 'attached', 'stopped', 'detached', 'died')
    WINDOW of_engine AS (PARTITION BY engine_id ORDER BY event_time, writer, seq)
)
SELECT
    coalesce(engine_id, 'unknown') AS engine_id, at_ns AS ended_ns,
    CASE WHEN next IN ('started', 'attached') THEN next_ns END AS restarted_ns,
    coalesce(reason, 'not known') AS reason
FROM life
WHERE action = 'died'
UNION ALL BY NAME
SELECT engine_id, NULL AS ended_ns, at_ns AS restarted_ns, 'its agent died' AS reason
FROM life
-- An engine that was attached lives on when its agent dies.
WHERE action = 'started' AND before = 'started'
ORDER BY coalesce(ended_ns, restarted_ns), engine_id;
