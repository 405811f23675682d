-- Trajectories that ended, by UTC day, task and outcome.
--
-- day: The UTC day on which the trajectories ended.
-- outcome: `finished`, `truncated` or `lost`.
-- trajectories: Number of trajectories.
-- staleness: Sum of the trajectories' staleness, in versions.
CREATE OR REPLACE VIEW daily_trajectory AS
SELECT
    day, run_id, provenance, task, outcome,
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, task, outcome))) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, task, outcome)))
    ) AS BIGINT)
FROM (FROM rolled_daily_trajectory UNION ALL BY NAME FROM unrolled_daily_trajectory)
GROUP BY ALL;
