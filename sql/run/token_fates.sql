-- Rollout tokens by where they were made and what became of them. Each token is counted on the engine that made it:
-- a turn that moved has a row for each engine, with the tokens of that engine only.
--   accepted, rejected: the last verdict on the trajectory. stale: the trainer dropped it.
--   lost: the attempt failed, the trajectory was lost, or a preemption threw the tokens away before the turn had them.
--   open: no verdict yet.
-- By hand: SET VARIABLE run_id = '...';
WITH judged AS (
    SELECT
        trajectory_id, arg_max(accepted, (event_time, writer, seq)) AS accepted,
        arg_max(stale, (event_time, writer, seq)) AS stale
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY trajectory_id
),
ended AS (
    SELECT trajectory_id, arg_max(outcome, (event_time, writer, seq)) AS outcome
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY trajectory_id
),
made AS (
    SELECT
        t.device_id, t.event_time, t.output_tokens AS tokens,
        CASE
            WHEN t.outcome = 'failed' OR e.outcome = 'lost' THEN 'lost'
            WHEN v.stale THEN 'stale'
            WHEN v.accepted THEN 'accepted'
            WHEN NOT v.accepted THEN 'rejected'
            ELSE 'open'
        END AS fate
    FROM turn AS t
    LEFT JOIN ended AS e USING (trajectory_id)
    LEFT JOIN judged AS v USING (trajectory_id)
    WHERE t.run_id = getvariable('run_id')
    UNION ALL
    SELECT device_id, event_time, tokens_lost, 'lost'
    FROM preemption WHERE run_id = getvariable('run_id') AND tokens_lost > 0
)
SELECT
    CASE p.pool WHEN 'serving' THEN 'borrowed' WHEN 'rollout' THEN 'dedicated' WHEN 'train' THEN 'dedicated'
                ELSE 'unallocated' END AS placement,
    m.fate,
    sum(m.tokens) AS tokens
FROM made AS m
ASOF LEFT JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS p
    ON m.device_id = p.device_id AND epoch_us(m.event_time) * 1000 >= p.since_ns
GROUP BY ALL
ORDER BY ALL;
