-- Answers that were judged in [from_ns, to_ns), of one provenance, by run and UTC day of the last verdict on each: how
-- many were accepted, of how many of these an audit knows the truth, and how many of those are correct.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH judged AS (
    SELECT
        run_id, trajectory_id,
        max(event_time) AS judged_at,
        arg_max(accepted AND NOT stale, (event_time, writer, seq)) AS accepted,
        arg_max({'correct': correct}, (event_time, writer, seq)).correct AS correct
    FROM verdict
    WHERE provenance = getvariable('provenance')
      AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
      AND event_time < make_timestamp(getvariable('to_ns') // 1000)
    GROUP BY run_id, trajectory_id
)
SELECT
    run_id, CAST(judged_at AS DATE) AS day,
    count(*) FILTER (accepted) AS accepted,
    count(*) FILTER (accepted AND correct IS NOT NULL) AS audited,
    count(*) FILTER (accepted AND correct) AS correct
FROM judged
GROUP BY ALL
ORDER BY ALL;
