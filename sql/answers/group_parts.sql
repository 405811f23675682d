-- Generated and accepted trajectories of each group, by their policy version, task or step, and in each part in the
-- order of the groups' first turns.
-- A trajectory belongs whole to one part: to the oldest version that made one of its tokens, to its task (its group's
-- while it has not ended), to its step. `part` is NULL where that is not known. Tokens that a preemption threw away
-- belong to no trajectory: one row with neither group nor part.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE part = 'version';
WITH judged AS (
    SELECT
        group_id, trajectory_id,
        arg_max(policy_version, (event_time, writer, seq)) AS policy_version,
        arg_max(step, (event_time, writer, seq)) AS step,
        arg_max(accepted AND NOT stale, (event_time, writer, seq)) AS accepted
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY group_id, trajectory_id
),
ended AS (
    SELECT
        group_id, trajectory_id,
        arg_max(policy_version, (event_time, writer, seq)) AS policy_version,
        arg_max(step, (event_time, writer, seq)) AS step,
        arg_max(task, (event_time, writer, seq)) AS task
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY group_id, trajectory_id
),
tokens AS (
    SELECT
        t.group_id, t.trajectory_id, min(t.policy_version) AS policy_version, min(t.step) AS step,
        min(t.event_time) AS made_at,
        coalesce(sum(t.output_tokens) FILTER (p.pool = 'serving'), 0) AS borrowed_tokens,
        coalesce(sum(t.output_tokens) FILTER (p.pool IN ('rollout', 'train')), 0) AS dedicated_tokens
    FROM turn AS t
    ASOF LEFT JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS p
        ON t.device_id = p.device_id AND epoch_us(t.event_time) * 1000 >= p.since_ns
    WHERE t.run_id = getvariable('run_id')
    GROUP BY t.group_id, t.trajectory_id
),
each AS (
    SELECT
        group_id,
        coalesce(ended.policy_version, judged.policy_version, tokens.policy_version) AS policy_version,
        coalesce(ended.step, judged.step, tokens.step) AS step,
        coalesce(ended.task, any_value(ended.task) OVER (PARTITION BY group_id)) AS task,
        coalesce(accepted, false) AS accepted, made_at,
        coalesce(borrowed_tokens, 0) AS borrowed_tokens,
        coalesce(dedicated_tokens, 0) AS dedicated_tokens
    FROM ended
    FULL JOIN judged USING (group_id, trajectory_id)
    FULL JOIN tokens USING (group_id, trajectory_id)
),
parted AS (
    SELECT
        group_id,
        CASE getvariable('part') WHEN 'version' THEN policy_version WHEN 'step' THEN step END AS number,
        CASE getvariable('part') WHEN 'task' THEN task END AS name,
        accepted, borrowed_tokens, dedicated_tokens, made_at
    FROM each
    UNION ALL BY NAME
    SELECT
        coalesce(sum(l.tokens_lost) FILTER (p.pool = 'serving'), 0) AS borrowed_tokens,
        coalesce(sum(l.tokens_lost) FILTER (p.pool IN ('rollout', 'train')), 0) AS dedicated_tokens
    FROM preemption AS l
    ASOF LEFT JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS p
        ON l.device_id = p.device_id AND epoch_us(l.event_time) * 1000 >= p.since_ns
    WHERE l.run_id = getvariable('run_id')
)
SELECT
    coalesce(name, CAST(number AS VARCHAR)) AS part,
    group_id,
    count_if(coalesce(accepted, false)) AS accepted,
    sum(borrowed_tokens) AS borrowed_tokens,
    sum(dedicated_tokens) AS dedicated_tokens
FROM parted
GROUP BY number, name, group_id
ORDER BY number, name, min(made_at), group_id;
