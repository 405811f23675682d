-- Amounts that each event adds to daily_event.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    writer,
    kind,
    1 AS events,
    at_us AS newest_at_us
FROM unrolled_event;
