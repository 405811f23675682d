-- Amounts that each event adds to daily_turn.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    lease_id IS NOT NULL AS lent,
    placement,
    outcome,
    1 AS turns,
    prompt_tokens,
    cached_tokens,
    output_tokens,
    answer_tokens,
    queue_ns,
    duration_ns
FROM unrolled_event
WHERE kind = 'turn' AND reckonable('turn');
