-- Turns of rollouts by UTC day, whether on a borrowed device, placement and outcome: their tokens and times.
--
-- day: The UTC day it happened on.
-- lent: Whether they ran on a borrowed device.
-- turns: Turns counted, each attempt for itself.
CREATE OR REPLACE VIEW daily_turn AS
SELECT
    day, run_id, provenance, lent, placement, outcome,
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, lent, placement, outcome))) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, lent, placement, outcome)))
    ) AS BIGINT)
FROM (FROM rolled_daily_turn UNION ALL BY NAME FROM unrolled_daily_turn)
GROUP BY ALL;
