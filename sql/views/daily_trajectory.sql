-- Trajectories that ended, by UTC day, task and outcome.
--
-- day: The UTC day it happened on.
-- outcome: `finished`, `truncated` or `lost`.
-- trajectories: Trajectories counted.
-- staleness: Sum of their staleness, versions.
CREATE OR REPLACE VIEW daily_trajectory AS
SELECT
    day, run_id, provenance, task, outcome,
    CAST(least(sum(trajectories), 9223372036854775807) AS BIGINT) AS trajectories,
    CAST(least(sum(turns), 9223372036854775807) AS BIGINT) AS turns,
    CAST(least(sum(prompt_tokens), 9223372036854775807) AS BIGINT) AS prompt_tokens,
    CAST(least(sum(output_tokens), 9223372036854775807) AS BIGINT) AS output_tokens,
    CAST(least(sum(answer_tokens), 9223372036854775807) AS BIGINT) AS answer_tokens,
    CAST(least(sum(staleness), 9223372036854775807) AS BIGINT) AS staleness,
    CAST(least(sum(duration_ns), 9223372036854775807) AS BIGINT) AS duration_ns
FROM (FROM rolled_daily_trajectory UNION ALL BY NAME FROM unrolled_daily_trajectory)
GROUP BY ALL;
