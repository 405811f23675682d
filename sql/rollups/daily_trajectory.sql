-- Amounts that each event adds to daily_trajectory.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    task,
    outcome,
    1 AS trajectories,
    turns,
    prompt_tokens,
    output_tokens,
    answer_tokens,
    staleness,
    duration_ns
FROM unrolled_event
WHERE kind = 'trajectory' AND reckonable('trajectory');
