-- Amounts that each event adds to daily_sync.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    device_id,
    route,
    encoding,
    ok,
    1 AS syncs,
    wire_bytes,
    dense_bytes,
    pause_ns,
    total_ns
FROM unrolled_event
WHERE kind = 'sync' AND reckonable('sync');
