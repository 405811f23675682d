-- For the RL engineer and the finance lead: how much device time, how many tokens and, at a given price, how much money
-- did an accepted and a correct trajectory of each policy version take?
--
-- since (TIMESTAMP): only steps that ended at or after this time, UTC.
-- until (TIMESTAMP): only steps that ended before this time, UTC.
-- run_id (VARCHAR): only this run.
-- rate_usd_per_hour (DECIMAL(18,9)): price of one hour of one device, US dollars; without it the money is NULL.
--
-- Device time is the time of rollouts and weight syncs on all devices between the ends of the step before and of the
-- step, with rollouts of later steps in it. It is divided among the versions of the step's trajectories by their output
-- tokens, to the nanosecond. The start of engines (`activation_overhead`) and unfinished steps are left out. Stale
-- trajectories count as made, but not as accepted. `correct` counts the accepted ones that an audit found right, of
-- `audited`. Money is in integer nano-dollars, rounded half up, at one price for all devices. To quote a cost, use
-- `rose report`, which prices each class by its book.
WITH done AS (
    SELECT
        run_id, provenance, step,
        1000 * epoch_us(step.event_time) AS t1_ns,
        lag(1000 * epoch_us(step.event_time), 1, 1000 * epoch_us(step.event_time) - total_ns) OVER steps AS t0_ns
    FROM step
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    WINDOW steps AS (PARTITION BY run_id, provenance ORDER BY step.event_time, writer, seq)
),
-- A slice belongs to the step it begins in.
spent AS (
    SELECT done.run_id, done.provenance, done.step, sum(slice.rollout_ns + slice.sync_ns) AS ns
    FROM device_slice AS slice
    ASOF JOIN done
        ON slice.rollout_run_id = done.run_id AND slice.provenance = done.provenance AND slice.t0_ns >= done.t0_ns
    WHERE slice.t0_ns < done.t1_ns
      AND (getvariable('since') IS NULL OR done.t1_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
      AND (getvariable('until') IS NULL OR done.t1_ns < epoch_ns(getvariable('until')::TIMESTAMP))
    GROUP BY ALL
),
judged AS (
    SELECT
        run_id, provenance, trajectory_id,
        arg_max(accepted AND NOT stale, (verdict.event_time, writer, seq)) AS accepted,
        arg_max({'correct': correct}, (verdict.event_time, writer, seq)).correct AS correct
    FROM verdict
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    GROUP BY ALL
),
made AS (
    SELECT
        ended.run_id, ended.provenance, ended.step, ended.policy_version,
        count(*) AS trajectories,
        count(*) FILTER (judged.accepted) AS accepted,
        count(*) FILTER (judged.accepted AND judged.correct IS NOT NULL) AS audited,
        count(*) FILTER (judged.accepted AND judged.correct) AS correct,
        sum(ended.output_tokens) AS output_tokens
    FROM trajectory AS ended
    LEFT JOIN judged USING (run_id, provenance, trajectory_id)
    GROUP BY ALL
),
counted AS (
    SELECT
        made.*, spent.ns::HUGEINT AS step_ns,
        sum(made.output_tokens) OVER (PARTITION BY run_id, provenance, step ORDER BY policy_version) AS tokens_so_far,
        sum(made.output_tokens) OVER (PARTITION BY run_id, provenance, step) AS tokens_of_step
    FROM made
    JOIN spent USING (run_id, provenance, step)
),
-- The difference of two shares counted from the start of the step: their sum is exact.
reached AS (
    SELECT
        *,
        CASE WHEN tokens_so_far = tokens_of_step THEN step_ns
             ELSE step_ns * tokens_so_far // tokens_of_step END AS to_ns
    FROM counted
),
divided AS (
    SELECT
        *,
        to_ns - lag(to_ns, 1, 0::HUGEINT) OVER (PARTITION BY run_id, provenance, step ORDER BY policy_version) AS ns
    FROM reached
),
version AS (
    SELECT
        provenance, run_id, policy_version,
        sum(trajectories)::BIGINT AS trajectories,
        sum(accepted)::BIGINT AS accepted,
        sum(audited)::BIGINT AS audited,
        sum(correct)::BIGINT AS correct,
        sum(output_tokens)::BIGINT AS output_tokens,
        sum(ns) AS device_ns,
        (getvariable('rate_usd_per_hour')::DECIMAL(28, 9) * 1000000000::DECIMAL(10, 0))::HUGEINT
            AS rate_nano_usd_per_hour
    FROM divided
    GROUP BY ALL
),
priced AS (
    -- Half is added before the whole part is taken: 3.6e12 nanoseconds are an hour.
    SELECT *, (device_ns * rate_nano_usd_per_hour + 1800000000000) // 3600000000000 AS nano_usd
    FROM version
)
SELECT
    provenance, run_id, policy_version, trajectories, accepted, audited, correct, output_tokens,
    device_ns::BIGINT AS device_ns,
    device_ns / 1e9 / nullif(accepted, 0) AS device_s_per_accepted,
    device_ns / 1e9 / nullif(correct, 0) AS device_s_per_correct,
    output_tokens / nullif(accepted, 0) AS tokens_per_accepted,
    output_tokens / nullif(correct, 0) AS tokens_per_correct,
    nano_usd::BIGINT AS nano_usd,
    ((2 * nano_usd + accepted) // nullif(2 * accepted, 0))::BIGINT AS nano_usd_per_accepted,
    ((2 * nano_usd + correct) // nullif(2 * correct, 0))::BIGINT AS nano_usd_per_correct
FROM priced
ORDER BY run_id, provenance, policy_version;
