-- Amounts that each event adds to daily_lease.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    device_id,
    action,
    1 AS changes
FROM unrolled_event
WHERE kind = 'lease' AND reckonable('lease');
