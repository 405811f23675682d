-- How many trajectories the verifier accepted in [from_ns, to_ns), by its last word, run by run; a stale one is none.
-- Read from the ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH judged AS (
    SELECT
        run_id, group_id, trajectory_id, max(event_time) AS judged_at,
        arg_max(accepted AND NOT stale, (event_time, writer, seq)) AS accepted
    FROM verdict
    WHERE provenance = getvariable('provenance')
    GROUP BY run_id, group_id, trajectory_id
)
SELECT run_id, count_if(accepted) AS accepted
FROM judged
WHERE judged_at >= make_timestamp(getvariable('from_ns') // 1000)
  AND judged_at < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY run_id
ORDER BY run_id;
