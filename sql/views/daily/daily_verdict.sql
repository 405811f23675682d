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
    CAST(if(sum(verdicts) > 9223372036854775807, 9223372036854775807, sum(verdicts)) AS BIGINT) AS verdicts,
    CAST(if(sum(accepted) > 9223372036854775807, 9223372036854775807, sum(accepted)) AS BIGINT) AS accepted,
    CAST(if(sum(stale) > 9223372036854775807, 9223372036854775807, sum(stale)) AS BIGINT) AS stale,
    CAST(if(sum(audited) > 9223372036854775807, 9223372036854775807, sum(audited)) AS BIGINT) AS audited,
    CAST(if(sum(accepted_wrong) > 9223372036854775807, 9223372036854775807, sum(accepted_wrong)) AS BIGINT)
        AS accepted_wrong,
    CAST(if(sum(rejected_right) > 9223372036854775807, 9223372036854775807, sum(rejected_right)) AS BIGINT)
        AS rejected_right
FROM (FROM rolled_daily_verdict UNION ALL BY NAME FROM unrolled_daily_verdict)
GROUP BY ALL;
