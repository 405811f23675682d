-- KV memory that rollout engines held on serving devices while nothing was lent, by stretch between price changes. Only a
-- pool of fixed size (`budget`) stays where no lease needs it; `byte_ns` is NULL where an engine did not say how large.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0; SET VARIABLE price_changes = []::BIGINT[];
WITH change AS (
    SELECT
        *, epoch_ns(event_time) AS t0_ns,
        lead(epoch_ns(event_time), 1, getvariable('period_end_ns')) OVER (
            PARTITION BY engine_id ORDER BY event_time, writer, seq
        ) AS t1_ns
    FROM engine
    WHERE run_id = getvariable('run_id') AND role = 'rollout' AND action IN ('started', 'stopped', 'died')
      AND device_id IN (SELECT device_id FROM device WHERE run_id = getvariable('run_id') AND pool = 'serving')
),
life AS (
    SELECT device_id, kv_bytes, t0_ns, t1_ns
    FROM change
    WHERE action = 'started' AND t1_ns > t0_ns
      AND memory_mechanism LIKE '%budget' AND memory_mechanism NOT LIKE 'leased+%'
),
held AS (
    SELECT
        device_id, epoch_ns(granted_at) AS t0_ns,
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
),
part AS (
    SELECT device_id, kv_bytes, segment, greatest(t0_ns, from_ns) AS t0_ns, least(t1_ns, to_ns) AS t1_ns
    FROM life JOIN stretch ON t0_ns < to_ns AND from_ns < t1_ns
),
leased AS (
    SELECT p.device_id, p.t0_ns, p.segment, sum(least(h.t1_ns, p.t1_ns) - greatest(h.t0_ns, p.t0_ns)) AS ns
    FROM part AS p
    JOIN held AS h ON h.device_id = p.device_id AND h.t0_ns < p.t1_ns AND p.t0_ns < h.t1_ns AND h.t0_ns < h.t1_ns
    GROUP BY ALL
)
SELECT
    p.segment,
    CASE WHEN count(*) = count(p.kv_bytes)
         THEN sum(p.kv_bytes::HUGEINT * greatest(p.t1_ns - p.t0_ns - coalesce(l.ns, 0), 0)) END AS byte_ns
FROM part AS p
LEFT JOIN leased AS l USING (device_id, t0_ns, segment)
GROUP BY ALL
ORDER BY ALL;
