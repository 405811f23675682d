-- What each event adds to daily_trajectory.
SELECT
    CAST(make_timestamp(at_us) AS DATE) AS day,
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
WHERE kind = 'trajectory';
