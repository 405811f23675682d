-- Weight syncs by UTC day, device, route and encoding: bytes moved and time taken.
--
-- day: The UTC day it happened on.
-- syncs: Syncs counted.
CREATE OR REPLACE VIEW daily_sync AS
SELECT
    day, run_id, provenance, device_id, route, encoding, ok,
    CAST(if(sum(syncs) > 9223372036854775807, 9223372036854775807, sum(syncs)) AS BIGINT) AS syncs,
    CAST(if(sum(wire_bytes) > 9223372036854775807, 9223372036854775807, sum(wire_bytes)) AS BIGINT) AS wire_bytes,
    CAST(if(sum(dense_bytes) > 9223372036854775807, 9223372036854775807, sum(dense_bytes)) AS BIGINT) AS dense_bytes,
    CAST(if(sum(pause_ns) > 9223372036854775807, 9223372036854775807, sum(pause_ns)) AS BIGINT) AS pause_ns,
    CAST(if(sum(total_ns) > 9223372036854775807, 9223372036854775807, sum(total_ns)) AS BIGINT) AS total_ns
FROM (FROM rolled_daily_sync UNION ALL BY NAME FROM unrolled_daily_sync)
GROUP BY ALL;
