-- What the verifier's last words in [from_ns, to_ns) were, run by run: trajectories judged (not dropped as stale) and
-- accepted, those of the accepted whose truth an audit knows, and those of them that were correct. Read from the
-- ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH judged AS (
    SELECT
        run_id, group_id, trajectory_id, max(event_time) AS judged_at,
        NOT arg_max(stale, (event_time, writer, seq)) AS judged,
        arg_max(accepted AND NOT stale, (event_time, writer, seq)) AS accepted,
        arg_max({'correct': correct}, (event_time, writer, seq)).correct AS correct
    FROM verdict
    WHERE provenance = getvariable('provenance')
    GROUP BY run_id, group_id, trajectory_id
)
SELECT
    run_id,
    count_if(judged) AS judged,
    count_if(accepted) AS accepted,
    count_if(accepted AND correct IS NOT NULL) AS audited,
    count(*) FILTER (accepted AND correct) AS audited_correct
FROM judged
WHERE judged_at >= make_timestamp(getvariable('from_ns') // 1000)
  AND judged_at < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY run_id
ORDER BY run_id;
