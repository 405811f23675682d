-- Turns of rollouts by UTC day, whether on a borrowed device, placement and outcome: their tokens and times.
--
-- day: The UTC day it happened on.
-- lent: Whether they ran on a borrowed device.
-- turns: Turns counted, each attempt for itself.
CREATE OR REPLACE VIEW daily_turn AS
SELECT
    day, run_id, provenance, lent, placement, outcome,
    CAST(sum(turns) AS BIGINT) AS turns,
    CAST(sum(prompt_tokens) AS BIGINT) AS prompt_tokens,
    CAST(sum(cached_tokens) AS BIGINT) AS cached_tokens,
    CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
    CAST(sum(answer_tokens) AS BIGINT) AS answer_tokens,
    CAST(sum(queue_ns) AS BIGINT) AS queue_ns,
    CAST(sum(duration_ns) AS BIGINT) AS duration_ns
FROM (FROM rolled_daily_turn UNION ALL BY NAME FROM unrolled_daily_turn)
GROUP BY ALL;
