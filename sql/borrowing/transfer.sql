-- Weight syncs to serving devices, failed ones included, by lease if `by_lease`, route and stretch between price
-- changes. A sync under no lease was for the leases on its device until the next sync: by lease it comes back once for
-- each of them, with `sync` set and how much of the lease that was the run's lay in that time as `weight_ns` (NULL,
-- NULL if there was none). Reads the table `lease_span`, which `lease_spans` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0; SET VARIABLE price_changes = []::BIGINT[];
-- SET VARIABLE by_lease = true;
WITH pool AS (
    SELECT device_id, pool, CASE WHEN lag(joined_ns) OVER device IS NULL THEN 0 ELSE joined_ns END AS since_ns
    FROM tenure WHERE run_id = getvariable('run_id')
    WINDOW device AS (PARTITION BY device_id ORDER BY joined_ns)
),
sent AS (
    SELECT
        writer || '/' || seq AS sync, lease_id, s.device_id, route, wire_bytes,
        epoch_us(event_time) * 1000 AS from_ns,
        lead(epoch_us(event_time) * 1000, 1, getvariable('period_end_ns'))
            OVER (PARTITION BY s.device_id ORDER BY event_time, writer, seq) AS to_ns,
        len(list_filter(
            getvariable('price_changes')::BIGINT[], lambda c: c <= epoch_us(event_time) * 1000
        )) AS segment
    FROM sync AS s
    ASOF JOIN pool AS p ON s.device_id = p.device_id AND epoch_us(s.event_time) * 1000 >= p.since_ns
    WHERE run_id = getvariable('run_id') AND p.pool = 'serving'
),
used AS (
    SELECT s.sync, h.lease_id, sum(least(h.t1_ns, s.to_ns) - greatest(h.t0_ns, s.from_ns)) AS weight_ns
    FROM sent AS s
    JOIN lease_span AS h ON h.device_id = s.device_id AND h.t0_ns < s.to_ns AND s.from_ns < h.t1_ns
    WHERE getvariable('by_lease') AND s.lease_id IS NULL AND s.to_ns > s.from_ns
    GROUP BY ALL
)
SELECT
    coalesce(s.lease_id, u.lease_id) AS lease_id,
    CASE WHEN u.lease_id IS NOT NULL THEN s.sync END AS sync,
    s.route, s.segment, u.weight_ns,
    CAST(sum(s.wire_bytes) AS BIGINT) AS wire_bytes,
    count(*) AS syncs
FROM sent AS s
LEFT JOIN used AS u USING (sync)
GROUP BY ALL
ORDER BY ALL;
