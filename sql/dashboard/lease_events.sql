-- Everything that happened to one lease that the run had, in its order, with the events that say so: at most 1000. Of
-- one that passed from one RL run to another, both have all of it. `latency_ms` is from serving's wish for the device
-- until the rollout was off it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE part = 'a lease';
WITH own AS (
    SELECT run_id, lease_id FROM lease_event
    WHERE lease_id = getvariable('part') AND getvariable('run_id') IN (run_id, rl_run_id)
    UNION
    SELECT run_id, lease_id FROM preemption
    WHERE lease_id = getvariable('part') AND getvariable('run_id') IN (run_id, rl_run_id)
),
happened AS (
    SELECT
        event_time, 'lease' AS event, action, reason, NULL AS latency_ms, NULL AS requests, NULL AS tokens_kept,
        NULL AS tokens_lost, writer, seq
    FROM lease_event
    SEMI JOIN own USING (run_id, lease_id)
    WHERE lease_id = getvariable('part')
    UNION ALL BY NAME
    SELECT
        event_time, 'preemption' AS event, action, reason, latency_ns / 1e6 AS latency_ms, requests, tokens_kept,
        tokens_lost, writer, seq
    FROM preemption
    SEMI JOIN own USING (run_id, lease_id)
    WHERE lease_id = getvariable('part')
)
SELECT event_time, event, action, reason, latency_ms, requests, tokens_kept, tokens_lost, writer, seq
FROM happened
ORDER BY event_time, writer, seq
LIMIT 1000;
