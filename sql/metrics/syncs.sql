-- Syncs, those that failed, and bytes moved, by route.
SELECT
    provenance, device_id, route,
    sum(syncs) AS syncs,
    coalesce(sum(syncs) FILTER (NOT ok), 0) AS failures,
    sum(wire_bytes) AS wire_bytes,
    sum(dense_bytes) AS dense_bytes
FROM daily_sync
GROUP BY ALL
ORDER BY ALL;
