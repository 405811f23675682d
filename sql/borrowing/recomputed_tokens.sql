-- Prompt tokens computed again because a preemption on a serving device had thrown their KV cache away: the uncached
-- prompt of each attempt that follows a preempted one. By stretch between price changes and, if `by_lease`, by the
-- lease of the attempt that was preempted.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[]; SET VARIABLE by_lease = true;
WITH pool AS (
    SELECT device_id, pool, CASE WHEN lag(joined_ns) OVER device IS NULL THEN 0 ELSE joined_ns END AS since_ns
    FROM tenure WHERE run_id = getvariable('run_id')
    WINDOW device AS (PARTITION BY device_id ORDER BY joined_ns)
),
attempt AS (
    SELECT
        prompt_tokens - cached_tokens AS uncached_tokens,
        lag(outcome) OVER attempts AS outcome_before,
        lag(device_id) OVER attempts AS device_before,
        lag(epoch_us(event_time) * 1000) OVER attempts AS before_ns,
        lag(lease_id) OVER attempts AS lease_before,
        len(list_filter(
            getvariable('price_changes')::BIGINT[], lambda c: c <= epoch_us(event_time) * 1000
        )) AS segment
    FROM turn
    WHERE run_id = getvariable('run_id')
    WINDOW attempts AS (PARTITION BY trajectory_id, turn ORDER BY attempt)
)
SELECT
    CASE WHEN getvariable('by_lease') THEN lease_before END AS lease_id,
    segment,
    CAST(sum(uncached_tokens) AS BIGINT) AS tokens
FROM attempt AS a
ASOF JOIN pool AS p ON a.device_before = p.device_id AND a.before_ns >= p.since_ns
WHERE a.outcome_before = 'preempted' AND p.pool = 'serving'
GROUP BY ALL
ORDER BY ALL;
