-- Weight syncs by UTC day, device, route and encoding: bytes moved and time taken.
--
-- day: The UTC day of the syncs.
-- syncs: Number of syncs.
CREATE OR REPLACE VIEW daily_sync AS
SELECT
    day, run_id, provenance, device_id, route, encoding, ok,
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, device_id, route, encoding, ok))) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, device_id, route, encoding, ok)))
    ) AS BIGINT)
FROM (FROM rolled_daily_sync UNION ALL BY NAME FROM unrolled_daily_sync)
GROUP BY ALL;
