-- Leased time inside the spans in which a device would have been given back to its owner had it not been lent, by lease
-- if `by_lease`, device class and stretch between price changes. The three lists hold one entry for each span.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0; SET VARIABLE price_changes = []::BIGINT[];
-- SET VARIABLE by_lease = true; SET VARIABLE span_device = ['...']; SET VARIABLE span_from = [0::BIGINT];
-- SET VARIABLE span_to = [0::BIGINT];
WITH class AS (
    SELECT device_id, device_class, CASE WHEN lag(joined_ns) OVER device IS NULL THEN 0 ELSE joined_ns END AS since_ns
    FROM tenure WHERE run_id = getvariable('run_id')
    WINDOW device AS (PARTITION BY device_id ORDER BY joined_ns)
),
span AS (
    SELECT
        unnest(getvariable('span_device')::VARCHAR[]) AS device_id,
        unnest(getvariable('span_from')::BIGINT[]) AS from_ns,
        unnest(getvariable('span_to')::BIGINT[]) AS to_ns
),
held AS (
    SELECT
        lease_id, device_id, epoch_ns(granted_at) AS t0_ns,
        coalesce(epoch_ns(closed_at), least(epoch_ns(expires_at), getvariable('period_end_ns'))) AS t1_ns
    FROM lease
    WHERE run_id = getvariable('run_id') AND granted_at IS NOT NULL
),
edge AS (
    SELECT list_concat([0], getvariable('price_changes')::BIGINT[], [9223372036854775807]) AS edges
),
stretch AS (
    SELECT n - 1 AS segment, edges[n] AS from_ns, edges[n + 1] AS to_ns
    FROM edge, unnest(range(1, len(edges))) AS numbers(n)
)
SELECT
    CASE WHEN getvariable('by_lease') THEN h.lease_id END AS lease_id,
    c.device_class,
    s.segment,
    CAST(sum(least(h.t1_ns, s.to_ns, p.to_ns) - greatest(h.t0_ns, s.from_ns, p.from_ns)) AS BIGINT) AS ns
FROM span AS p
JOIN held AS h ON h.device_id = p.device_id AND h.t0_ns < p.to_ns AND p.from_ns < h.t1_ns
JOIN stretch AS s ON greatest(h.t0_ns, p.from_ns) < s.to_ns AND s.from_ns < least(h.t1_ns, p.to_ns)
ASOF JOIN class AS c ON h.device_id = c.device_id AND h.t0_ns >= c.since_ns
GROUP BY ALL
ORDER BY ALL;
