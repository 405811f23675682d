-- The verifier's accept rate at each RL step: accepted over judged, stale ones in neither.
-- By hand: SET VARIABLE run_id = '...';
WITH last AS (
    SELECT
        step, trajectory_id,
        arg_max(accepted, (event_time, writer, seq)) AS accepted,
        arg_max(stale, (event_time, writer, seq)) AS stale
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY step, trajectory_id
)
SELECT
    step,
    count_if(NOT stale) AS judged,
    count_if(accepted AND NOT stale) AS accepted,
    count_if(stale) AS stale
FROM last
GROUP BY step
ORDER BY step;
