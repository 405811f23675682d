-- One row for each group, in the order of their first turns: its step, the tokens its turns made by place (`useful`
-- leaves out stale and lost ones), the output and answer tokens of its trajectories that were not lost and whose
-- answers are known, and what the verifier and the audit said. `judged` leaves out trajectories that the trainer
-- dropped as stale; `audited_*` count accepted ones whose truth is known.
-- By hand: SET VARIABLE run_id = '...';
WITH judged AS (
    SELECT
        group_id, trajectory_id, min(step) AS step, min(event_time) AS judged_at,
        arg_max(accepted AND NOT stale, (event_time, writer, seq)) AS accepted,
        NOT arg_max(stale, (event_time, writer, seq)) AS judged,
        arg_max({'correct': correct}, (event_time, writer, seq)).correct AS correct
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY group_id, trajectory_id
),
verdicts AS (
    SELECT
        group_id, min(step) AS judged_step, min(judged_at) AS judged_at,
        count_if(judged) AS judged,
        count_if(accepted) AS accepted,
        count_if(accepted AND correct IS NOT NULL) AS audited,
        count_if(accepted AND correct) AS audited_correct
    FROM judged GROUP BY group_id
),
ended AS (
    SELECT trajectory_id, arg_max(outcome, (event_time, writer, seq)) AS outcome
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY trajectory_id
),
trajectories AS (
    SELECT
        group_id, min(step) AS ended_step, min(event_time) AS ended_at, count(DISTINCT trajectory_id) AS trajectories,
        coalesce(sum(output_tokens) FILTER (outcome <> 'lost' AND answer_tokens IS NOT NULL), 0) AS output_tokens,
        coalesce(sum(answer_tokens) FILTER (outcome <> 'lost'), 0) AS answer_tokens
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY group_id
),
made AS (
    SELECT
        t.group_id, t.step, t.event_time, t.output_tokens AS tokens,
        coalesce(p.pool = 'serving', false) AS borrowed,
        coalesce(p.pool IN ('rollout', 'train'), false) AS dedicated,
        t.outcome = 'failed' OR coalesce(e.outcome = 'lost', false) OR NOT coalesce(j.judged, true) AS wasted
    FROM turn AS t
    ASOF LEFT JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS p
        ON t.device_id = p.device_id AND epoch_us(t.event_time) * 1000 >= p.since_ns
    LEFT JOIN ended AS e USING (trajectory_id)
    LEFT JOIN judged AS j USING (group_id, trajectory_id)
    WHERE t.run_id = getvariable('run_id')
),
tokens AS (
    SELECT
        group_id, min(step) AS made_step, min(event_time) AS made_at,
        coalesce(sum(tokens) FILTER (borrowed), 0) AS borrowed_tokens,
        coalesce(sum(tokens) FILTER (dedicated), 0) AS dedicated_tokens,
        coalesce(sum(tokens) FILTER (borrowed AND NOT wasted), 0) AS borrowed_useful,
        coalesce(sum(tokens) FILTER (dedicated AND NOT wasted), 0) AS dedicated_useful
    FROM made
    GROUP BY group_id
)
SELECT
    group_id,
    coalesce(judged_step, ended_step, made_step) AS step,
    coalesce(trajectories, 0) AS trajectories,
    coalesce(judged, 0) AS judged,
    coalesce(accepted, 0) AS accepted,
    coalesce(audited, 0) AS audited,
    coalesce(audited_correct, 0) AS audited_correct,
    coalesce(output_tokens, 0) AS output_tokens,
    coalesce(answer_tokens, 0) AS answer_tokens,
    coalesce(borrowed_tokens, 0) AS borrowed_tokens,
    coalesce(dedicated_tokens, 0) AS dedicated_tokens,
    coalesce(borrowed_useful, 0) AS borrowed_useful,
    coalesce(dedicated_useful, 0) AS dedicated_useful
FROM trajectories
FULL JOIN verdicts USING (group_id)
FULL JOIN tokens USING (group_id)
ORDER BY coalesce(made_at, ended_at, judged_at), group_id;
