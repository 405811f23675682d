-- Verdicts of each verifier on trajectories whose truth is known: the last one each, stale or not. `reward` is what the
-- verifier reported, `accepted` what it decided at its threshold.
-- By hand: SET VARIABLE run_id = '...';
WITH last AS (
    SELECT
        trajectory_id, verifier, min(group_id) AS group_id,
        arg_max({'reward': reward, 'accepted': accepted, 'correct': correct}, (event_time, writer, seq)) AS said
    FROM verdict
    WHERE run_id = getvariable('run_id')
    GROUP BY trajectory_id, verifier
)
SELECT trajectory_id AS probe, verifier, group_id, said.reward, said.accepted, said.correct
FROM last
WHERE said.correct IS NOT NULL
ORDER BY probe, verifier;
