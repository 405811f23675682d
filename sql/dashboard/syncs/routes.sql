-- Syncs that ended in [from_ns, to_ns) by where their bytes came from, over which route, and how they were encoded.
-- Those that failed moved bytes too; what they would have been whole is not known. Percentiles are measured values, of
-- syncs that reached their version.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT
    source, route, encoding,
    count_if(ok) AS reached,
    count_if(NOT ok) AS failed,
    CAST(sum(wire_bytes) AS BIGINT) AS wire_bytes,
    CAST(sum(dense_bytes) FILTER (ok) AS BIGINT) AS dense_bytes,
    quantile_disc(total_ns, 0.5) FILTER (ok) / 1e6 AS total_p50_ms,
    quantile_disc(total_ns, 0.99) FILTER (ok) / 1e6 AS total_p99_ms,
    quantile_disc(pause_ns, 0.5) FILTER (ok) / 1e6 AS pause_p50_ms,
    quantile_disc(pause_ns, 0.99) FILTER (ok) / 1e6 AS pause_p99_ms
FROM sync
WHERE getvariable('run_id') IN (run_id, rl_run_id)
  AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
  AND event_time < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY ALL
ORDER BY wire_bytes DESC, source, route, encoding;
