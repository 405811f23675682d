-- What each event adds to daily_event.
SELECT
    CAST(make_timestamp(at_us) AS DATE) AS day,
    run_id, provenance,
    writer,
    kind,
    1 AS events,
    at_us AS newest_at_us
FROM unrolled_event;
