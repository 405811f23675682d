-- Each RL step (the newest 1000): what the verifier said of its trajectories, their tokens, age and reward, and what
-- the update saw. Stale trajectories are neither judged nor accepted. `tokens` is what the step's turns made, useful
-- or not; columns of the `step` view are NULL until the step is over.
-- By hand: SET VARIABLE run_id = '...';
WITH judged AS (
    SELECT
        step, trajectory_id,
        arg_max(accepted, (event_time, writer, seq)) AS accepted,
        arg_max(stale, (event_time, writer, seq)) AS stale,
        arg_max(reward, (event_time, writer, seq)) AS reward
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY step, trajectory_id
),
verdicts AS (
    SELECT
        step,
        count_if(NOT stale) AS judged,
        count_if(accepted AND NOT stale) AS accepted,
        count_if(stale) AS stale,
        avg(reward) AS reward
    FROM judged GROUP BY step
),
made AS (
    SELECT step, CAST(sum(output_tokens) AS BIGINT) AS tokens
    FROM turn WHERE run_id = getvariable('run_id') GROUP BY step
),
ended AS (
    SELECT step, count(*) AS trajectories, avg(staleness) AS staleness_mean, max(staleness) AS staleness_max
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY step
),
done AS (
    SELECT step, tokens_trained, loss, entropy, rollout_ns / 1e9 AS rollout_s, train_ns / 1e9 AS train_s,
        sync_ns / 1e9 AS sync_s
    FROM step WHERE run_id = getvariable('run_id')
),
newest AS (
    SELECT
        step,
        coalesce(judged, 0) AS judged,
        coalesce(accepted, 0) AS accepted,
        coalesce(stale, 0) AS stale,
        accepted / nullif(judged, 0) AS alpha,
        reward,
        coalesce(tokens, 0) AS tokens,
        coalesce(trajectories, 0) AS trajectories,
        staleness_mean, staleness_max,
        tokens_trained, loss, entropy, rollout_s, train_s, sync_s
    FROM verdicts
    FULL JOIN made USING (step)
    FULL JOIN ended USING (step)
    FULL JOIN done USING (step)
    ORDER BY step DESC
    LIMIT 1000
)
FROM newest ORDER BY step;
