-- Weight syncs by pool of the receiving device, route, encoding and success.
-- By hand: SET VARIABLE run_id = '...';
WITH pool AS (
    SELECT device_id, pool, CASE WHEN lag(joined_ns) OVER device IS NULL THEN 0 ELSE joined_ns END AS since_ns
    FROM tenure WHERE run_id = getvariable('run_id')
    WINDOW device AS (PARTITION BY device_id ORDER BY joined_ns)
)
SELECT
    coalesce(p.pool, 'unallocated') AS pool,
    s.route,
    s.encoding,
    s.ok,
    count(*) AS syncs,
    sum(s.wire_bytes) AS wire_bytes,
    sum(s.dense_bytes) AS dense_bytes,
    coalesce(sum(s.pause_ns), 0) AS pause_ns
FROM sync AS s
ASOF LEFT JOIN pool AS p ON s.device_id = p.device_id AND epoch_us(s.event_time) * 1000 >= p.since_ns
WHERE s.run_id = getvariable('run_id')
GROUP BY ALL
ORDER BY ALL;
