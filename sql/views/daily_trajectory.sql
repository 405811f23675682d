-- Trajectories that ended, by UTC day, task and outcome.
--
-- day: The UTC day it happened on.
-- outcome: `finished`, `truncated` or `lost`.
-- trajectories: Trajectories counted.
-- staleness: Sum of their staleness, versions.
CREATE OR REPLACE VIEW daily_trajectory AS
SELECT
    day, run_id, provenance, task, outcome,
    CAST(sum(trajectories) AS BIGINT) AS trajectories,
    CAST(sum(turns) AS BIGINT) AS turns,
    CAST(sum(prompt_tokens) AS BIGINT) AS prompt_tokens,
    CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
    CAST(sum(answer_tokens) AS BIGINT) AS answer_tokens,
    CAST(sum(staleness) AS BIGINT) AS staleness,
    CAST(sum(duration_ns) AS BIGINT) AS duration_ns
FROM (FROM rolled_daily_trajectory UNION ALL BY NAME FROM unrolled_daily_trajectory)
GROUP BY ALL;
