-- Amounts that each event adds to daily_preemption.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    coalesce(rl_run_id, run_id) AS rl_run_id,
    device_id,
    action,
    reason,
    coalesce(count, 1) AS preemptions,
    duration_ns,
    requests,
    tokens_kept,
    tokens_lost
FROM unrolled_event
WHERE kind = 'preemption' AND reckonable('preemption');
