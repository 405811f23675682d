-- Tokens and times of rollout turns, by UTC day, by whether the device was borrowed, and by placement and outcome.
--
-- day: The UTC day of the turns.
-- lent: Whether the turns ran on a borrowed device.
-- turns: Number of turns; each attempt counts as one.
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
