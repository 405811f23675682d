-- Add the tokens of the trajectories in `moved`, by what became of them, times `sign`: taken out before new events are
-- added, and put back after. A fate is that of the last verdict, the last end.
INSERT INTO made
WITH verdict AS (
    SELECT
        number, arg_max(accepted, (at_us, writer, seq)) AS accepted, arg_max(stale, (at_us, writer, seq)) AS stale
    FROM own_judged
    GROUP BY ALL
),
last_end AS (
    SELECT number, arg_max(outcome, (at_us, writer, seq)) AS outcome, arg_max(task, (at_us, writer, seq)) AS task
    FROM own_ended
    GROUP BY ALL
),
known AS (
    SELECT *
    FROM moved
    LEFT JOIN last_end USING (number)
    LEFT JOIN verdict USING (number)
),
again AS (
    SELECT *, lag(outcome) OVER (PARTITION BY number, turn ORDER BY attempt) AS outcome_before
    FROM own_attempt
),
found AS (
    SELECT
        t.unit, t.hour, t.lease_id, t.rl_run_id, t.policy_version, k.task,
        CASE
            WHEN t.failed OR k.outcome = 'lost' THEN 'lost'
            WHEN k.stale THEN 'stale'
            WHEN k.accepted THEN 'accepted'
            WHEN NOT k.accepted THEN 'rejected'
            ELSE 'open'
        END AS fate,
        CASE
            WHEN t.failed THEN 'failed attempt'
            WHEN k.outcome = 'lost' THEN 'lost trajectory'
            WHEN k.stale THEN 'stale'
            WHEN NOT k.accepted THEN 'rejected'
        END AS cause,
        true AS output, t.tokens
    FROM own_token AS t
    JOIN known AS k USING (number)
    UNION ALL BY NAME
    SELECT
        a.unit, a.hour, a.lease_id, a.rl_run_id, a.policy_version, k.task,
        'recomputed' AS fate, 'recomputed after preemption' AS cause, false AS output, a.uncached_tokens AS tokens
    FROM again AS a
    JOIN known AS k USING (number)
    WHERE a.outcome_before = 'preempted' AND a.uncached_tokens > 0
)
SELECT
    unit, hour, lease_id, rl_run_id, policy_version, task, fate, cause, output,
    getvariable('sign') * sum(tokens)
FROM found
GROUP BY ALL;
