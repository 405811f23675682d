-- Verdicts by UTC day and verifier, and how they compare with ground truth where an audit knows it.
--
-- day: The UTC day it happened on.
-- verdicts: Verdicts counted.
-- accepted: Verdicts that accepted.
-- stale: Verdicts on trajectories dropped for age.
-- audited: Verdicts whose truth is known.
-- accepted_wrong: Audited verdicts that accepted a wrong answer.
-- rejected_right: Audited verdicts that rejected a right one.
CREATE OR REPLACE VIEW daily_verdict AS
SELECT
    day, run_id, provenance, verifier,
    CAST(least(sum(verdicts), 9223372036854775807) AS BIGINT) AS verdicts,
    CAST(least(sum(accepted), 9223372036854775807) AS BIGINT) AS accepted,
    CAST(least(sum(stale), 9223372036854775807) AS BIGINT) AS stale,
    CAST(least(sum(audited), 9223372036854775807) AS BIGINT) AS audited,
    CAST(least(sum(accepted_wrong), 9223372036854775807) AS BIGINT) AS accepted_wrong,
    CAST(least(sum(rejected_right), 9223372036854775807) AS BIGINT) AS rejected_right
FROM (FROM rolled_daily_verdict UNION ALL BY NAME FROM unrolled_daily_verdict)
GROUP BY ALL;
