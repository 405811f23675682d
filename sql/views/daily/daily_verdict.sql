-- Verdicts by UTC day and verifier, and how they compare with ground truth where an audit knows it.
--
-- day: The UTC day of the verdicts.
-- verdicts: Number of verdicts.
-- accepted: Verdicts that accepted.
-- stale: Verdicts on trajectories that were dropped for age.
-- audited: Verdicts for which an audit knows the truth.
-- accepted_wrong: Audited verdicts that accepted a wrong answer.
-- rejected_right: Audited verdicts that rejected a right one.
CREATE OR REPLACE VIEW daily_verdict AS
SELECT
    day, run_id, provenance, verifier,
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, verifier))) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, verifier)))
    ) AS BIGINT)
FROM (FROM rolled_daily_verdict UNION ALL BY NAME FROM unrolled_daily_verdict)
GROUP BY ALL;
