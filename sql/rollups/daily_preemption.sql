-- What each event adds to daily_preemption.
SELECT
    CAST(make_timestamp(at_us) AS DATE) AS day,
    run_id, provenance,
    device_id,
    action,
    reason,
    coalesce(count, 1) AS preemptions,
    duration_ns,
    requests,
    tokens_kept,
    tokens_lost
FROM unrolled_event
WHERE kind = 'preemption';
