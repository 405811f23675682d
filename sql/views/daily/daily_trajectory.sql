-- Trajectories that ended, by UTC day, task and outcome.
--
-- day: The UTC day it happened on.
-- outcome: `finished`, `truncated` or `lost`.
-- trajectories: Trajectories counted.
-- staleness: Sum of their staleness, versions.
CREATE OR REPLACE VIEW daily_trajectory AS
SELECT
    day, run_id, provenance, task, outcome,
    CAST(if(sum(trajectories) > 9223372036854775807, 9223372036854775807, sum(trajectories)) AS BIGINT) AS trajectories,
    CAST(if(sum(turns) > 9223372036854775807, 9223372036854775807, sum(turns)) AS BIGINT) AS turns,
    CAST(if(sum(prompt_tokens) > 9223372036854775807, 9223372036854775807, sum(prompt_tokens)) AS BIGINT)
        AS prompt_tokens,
    CAST(if(sum(output_tokens) > 9223372036854775807, 9223372036854775807, sum(output_tokens)) AS BIGINT)
        AS output_tokens,
    CAST(if(sum(answer_tokens) > 9223372036854775807, 9223372036854775807, sum(answer_tokens)) AS BIGINT)
        AS answer_tokens,
    CAST(if(sum(staleness) > 9223372036854775807, 9223372036854775807, sum(staleness)) AS BIGINT) AS staleness,
    CAST(if(sum(duration_ns) > 9223372036854775807, 9223372036854775807, sum(duration_ns)) AS BIGINT) AS duration_ns
FROM (FROM rolled_daily_trajectory UNION ALL BY NAME FROM unrolled_daily_trajectory)
GROUP BY ALL;
