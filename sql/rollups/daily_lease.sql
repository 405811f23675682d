-- What each event adds to daily_lease.
SELECT
    CAST(make_timestamp(at_us) AS DATE) AS day,
    run_id, provenance,
    device_id,
    action,
    1 AS changes
FROM unrolled_event
WHERE kind = 'lease';
