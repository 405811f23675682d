-- Amounts for which terms of m have a rate, by stretch between price changes, as rows of two kinds:
--   sync: weight syncs to serving devices, failed ones included, by route.
--   recomputed: prompt tokens computed again because a preemption on a serving device had thrown their KV cache away:
--               the uncached prompt of each attempt that follows a preempted one.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[];
WITH attempt AS (
    SELECT
        prompt_tokens - cached_tokens AS tokens, epoch_us(event_time) * 1000 AS at_ns,
        lag(outcome) OVER attempts AS outcome_before,
        lag(device_id) OVER attempts AS device_id,
        lag(epoch_us(event_time) * 1000) OVER attempts AS pool_ns
    FROM turn
    WHERE run_id = getvariable('run_id')
    WINDOW attempts AS (PARTITION BY trajectory_id, turn ORDER BY attempt)
),
amount AS (
    SELECT
        'sync' AS what, route, device_id, epoch_us(event_time) * 1000 AS at_ns, at_ns AS pool_ns, wire_bytes, 1 AS syncs
    FROM sync
    WHERE run_id = getvariable('run_id')
    UNION ALL BY NAME
    SELECT 'recomputed' AS what, device_id, at_ns, pool_ns, tokens FROM attempt WHERE outcome_before = 'preempted'
)
SELECT
    what, route,
    len(list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= at_ns)) AS segment,
    CAST(sum(wire_bytes) AS BIGINT) AS wire_bytes,
    CAST(sum(syncs) AS BIGINT) AS syncs,
    CAST(sum(tokens) AS BIGINT) AS tokens
FROM amount AS a
ASOF JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS p
    ON a.device_id = p.device_id AND a.pool_ns >= p.since_ns
WHERE p.pool = 'serving'
GROUP BY ALL
ORDER BY ALL;
