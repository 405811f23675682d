-- Weight syncs by pool of the receiving device, route, encoding and success.
-- By hand: SET VARIABLE run_id = '...';
WITH pool AS (
    SELECT device_id, arg_max(pool, joined_ns) AS pool
    FROM device WHERE run_id = getvariable('run_id') GROUP BY device_id
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
LEFT JOIN pool AS p USING (device_id)
WHERE s.run_id = getvariable('run_id')
GROUP BY ALL
ORDER BY ALL;
