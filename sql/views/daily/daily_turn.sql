-- Turns of rollouts by UTC day, whether on a borrowed device, placement and outcome: their tokens and times.
--
-- day: The UTC day it happened on.
-- lent: Whether they ran on a borrowed device.
-- turns: Turns counted, each attempt for itself.
CREATE OR REPLACE VIEW daily_turn AS
SELECT
    day, run_id, provenance, lent, placement, outcome,
    CAST(if(sum(turns) > 9223372036854775807, 9223372036854775807, sum(turns)) AS BIGINT) AS turns,
    CAST(if(sum(prompt_tokens) > 9223372036854775807, 9223372036854775807, sum(prompt_tokens)) AS BIGINT)
        AS prompt_tokens,
    CAST(if(sum(cached_tokens) > 9223372036854775807, 9223372036854775807, sum(cached_tokens)) AS BIGINT)
        AS cached_tokens,
    CAST(if(sum(output_tokens) > 9223372036854775807, 9223372036854775807, sum(output_tokens)) AS BIGINT)
        AS output_tokens,
    CAST(if(sum(answer_tokens) > 9223372036854775807, 9223372036854775807, sum(answer_tokens)) AS BIGINT)
        AS answer_tokens,
    CAST(if(sum(queue_ns) > 9223372036854775807, 9223372036854775807, sum(queue_ns)) AS BIGINT) AS queue_ns,
    CAST(if(sum(duration_ns) > 9223372036854775807, 9223372036854775807, sum(duration_ns)) AS BIGINT) AS duration_ns
FROM (FROM rolled_daily_turn UNION ALL BY NAME FROM unrolled_daily_turn)
GROUP BY ALL;
