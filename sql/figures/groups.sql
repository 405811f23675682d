-- One row for each group: the tokens its turns made by place, and what the verifier and the audit said.
-- `judged` leaves out trajectories that the trainer dropped as stale; `audited_*` count accepted ones whose truth is known.
-- By hand: SET VARIABLE run_id = '...';
WITH pool AS (
    SELECT device_id, arg_max(pool, joined_ns) AS pool
    FROM device WHERE run_id = getvariable('run_id') GROUP BY device_id
),
judged AS (
    SELECT
        group_id, trajectory_id,
        arg_max(accepted AND NOT stale, ("at", writer, seq)) AS accepted,
        NOT arg_max(stale, ("at", writer, seq)) AS judged,
        arg_max({'correct': correct}, ("at", writer, seq)).correct AS correct
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY group_id, trajectory_id
),
verdicts AS (
    SELECT
        group_id,
        count_if(judged) AS judged,
        count_if(accepted) AS accepted,
        count_if(accepted AND correct IS NOT NULL) AS audited,
        count_if(accepted AND correct) AS audited_correct
    FROM judged GROUP BY group_id
),
trajectories AS (
    SELECT group_id, count(DISTINCT trajectory_id) AS trajectories
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY group_id
),
tokens AS (
    SELECT
        t.group_id,
        coalesce(sum(t.output_tokens) FILTER (p.pool = 'serving'), 0) AS borrowed_tokens,
        coalesce(sum(t.output_tokens) FILTER (p.pool IN ('rollout', 'train')), 0) AS dedicated_tokens
    FROM turn AS t
    LEFT JOIN pool AS p USING (device_id)
    WHERE t.run_id = getvariable('run_id')
    GROUP BY t.group_id
)
SELECT
    group_id,
    coalesce(trajectories, 0) AS trajectories,
    coalesce(judged, 0) AS judged,
    coalesce(accepted, 0) AS accepted,
    coalesce(audited, 0) AS audited,
    coalesce(audited_correct, 0) AS audited_correct,
    coalesce(borrowed_tokens, 0) AS borrowed_tokens,
    coalesce(dedicated_tokens, 0) AS dedicated_tokens
FROM trajectories
FULL JOIN verdicts USING (group_id)
FULL JOIN tokens USING (group_id)
ORDER BY group_id;
