-- The RL steps, or where there are more than `blocks`, so many stretches of them: what the verifier said of their
-- trajectories, their tokens, age and reward, and what the updates saw. Stale trajectories are neither judged nor
-- accepted. `tokens` is what the turns made, useful or not; reward, staleness, loss and entropy are means, and the
-- times those of a mean step. Columns of the `step` view are NULL until a step is over.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE blocks = 200;
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
        sum(reward) AS reward_sum,
        count(reward) AS rewards
    FROM judged GROUP BY step
),
made AS (
    SELECT step, CAST(sum(output_tokens) AS BIGINT) AS tokens
    FROM turn WHERE run_id = getvariable('run_id') GROUP BY step
),
ended AS (
    SELECT
        step, count(*) AS trajectories, sum(staleness) AS staleness_sum, count(staleness) AS ages,
        max(staleness) AS staleness_max
    FROM trajectory WHERE run_id = getvariable('run_id') GROUP BY step
),
done AS (
    SELECT step, tokens_trained, loss, entropy, rollout_ns / 1e9 AS rollout_s, train_ns / 1e9 AS train_s,
        sync_ns / 1e9 AS sync_s
    FROM step WHERE run_id = getvariable('run_id')
),
each AS (
    SELECT *
    FROM verdicts
    FULL JOIN made USING (step)
    FULL JOIN ended USING (step)
    FULL JOIN done USING (step)
),
span AS (
    SELECT min(step) AS begins, greatest(1, ceil((max(step) - min(step) + 1) / getvariable('blocks')))::BIGINT AS width
    FROM each
)
SELECT
    min(step) AS step,
    max(step) AS last_step,
    CAST(coalesce(sum(judged), 0) AS BIGINT) AS judged,
    CAST(coalesce(sum(accepted), 0) AS BIGINT) AS accepted,
    CAST(coalesce(sum(stale), 0) AS BIGINT) AS stale,
    sum(accepted) / nullif(sum(judged), 0) AS alpha,
    sum(reward_sum) / nullif(sum(rewards), 0) AS reward,
    CAST(coalesce(sum(tokens), 0) AS BIGINT) AS tokens,
    CAST(coalesce(sum(trajectories), 0) AS BIGINT) AS trajectories,
    sum(staleness_sum) / nullif(sum(ages), 0) AS staleness_mean,
    max(staleness_max) AS staleness_max,
    CAST(sum(tokens_trained) AS BIGINT) AS tokens_trained,
    avg(loss) AS loss,
    avg(entropy) AS entropy,
    avg(rollout_s) AS rollout_s,
    avg(train_s) AS train_s,
    avg(sync_s) AS sync_s
FROM each, span
WHERE step IS NOT NULL
GROUP BY (step - begins) // width
ORDER BY 1;
