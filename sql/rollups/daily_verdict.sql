-- Amounts that each event adds to daily_verdict.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    verifier,
    1 AS verdicts,
    CAST(accepted AS BIGINT) AS accepted,
    CAST(stale AS BIGINT) AS stale,
    CAST(correct IS NOT NULL AS BIGINT) AS audited,
    CAST(accepted AND NOT correct AS BIGINT) AS accepted_wrong,
    CAST(NOT accepted AND correct AS BIGINT) AS rejected_right
FROM unrolled_event
WHERE kind = 'verdict' AND reckonable('verdict');
