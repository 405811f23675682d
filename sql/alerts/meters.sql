-- Devices that are there and had readings of their power since from_ns: up to when, and up to when their time is
-- accounted for.
WITH reading AS (
    SELECT run_id, provenance, device_id, max(t1_ns) AS read_ns
    FROM power
    WHERE provenance = getvariable('provenance') AND power_mw IS NOT NULL AND t1_ns >= getvariable('from_ns')
    GROUP BY ALL
),
slice AS (
    SELECT run_id, provenance, device_id, max(t1_ns) AS seen_ns
    FROM device_slice
    WHERE provenance = getvariable('provenance') AND t1_ns >= getvariable('from_ns')
    GROUP BY ALL
)
SELECT run_id, device_id, read_ns, seen_ns
FROM reading
JOIN slice USING (run_id, provenance, device_id)
JOIN device USING (run_id, provenance, device_id)
WHERE left_ns IS NULL
ORDER BY run_id, device_id;
