-- Turns of rollouts by UTC day, whether on a borrowed device, placement and outcome: their tokens and times.
--
-- day: The UTC day it happened on.
-- lent: Whether they ran on a borrowed device.
-- turns: Turns counted, each attempt for itself.
CREATE OR REPLACE VIEW daily_turn AS
SELECT
    day, run_id, provenance, lent, placement, outcome,
    CAST(least(sum(turns), 9223372036854775807) AS BIGINT) AS turns,
    CAST(least(sum(prompt_tokens), 9223372036854775807) AS BIGINT) AS prompt_tokens,
    CAST(least(sum(cached_tokens), 9223372036854775807) AS BIGINT) AS cached_tokens,
    CAST(least(sum(output_tokens), 9223372036854775807) AS BIGINT) AS output_tokens,
    CAST(least(sum(answer_tokens), 9223372036854775807) AS BIGINT) AS answer_tokens,
    CAST(least(sum(queue_ns), 9223372036854775807) AS BIGINT) AS queue_ns,
    CAST(least(sum(duration_ns), 9223372036854775807) AS BIGINT) AS duration_ns
FROM (FROM rolled_daily_turn UNION ALL BY NAME FROM unrolled_daily_turn)
GROUP BY ALL;
