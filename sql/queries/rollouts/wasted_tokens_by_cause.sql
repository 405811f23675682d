-- For the finance lead: how many rollout tokens were wasted, on borrowed and on dedicated devices, and what wasted
-- them?
--
-- since (TIMESTAMP): only turns and preemptions recorded at or after this time, UTC.
-- until (TIMESTAMP): only turns and preemptions recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `stale`: the trainer dropped the trajectory for its age or to keep the batch in shape. `failed_attempt`: the engine
-- broke off. `lost_trajectory`: the trajectory never ended. `preemption`: tokens were thrown away before the turn had
-- them. A token counts once, by the first of failed, lost and stale, on the device that made it. A rejected trajectory
-- is not wasted: the trainer learns from it. `wasted_share` is a share of all tokens that the run made in that place.
WITH judged AS (
    SELECT run_id, provenance, trajectory_id, arg_max(stale, (verdict.event_time, writer, seq)) AS stale
    FROM verdict
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    GROUP BY ALL
),
ended AS (
    SELECT run_id, provenance, trajectory_id, arg_max(outcome, (trajectory.event_time, writer, seq)) AS outcome
    FROM trajectory
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    GROUP BY ALL
),
made AS (
    SELECT
        turn.run_id, turn.fleet_run_id, turn.provenance, turn.device_id, turn.output_tokens AS tokens,
        CASE
            WHEN turn.outcome = 'failed' THEN 'failed_attempt'
            WHEN ended.outcome = 'lost' THEN 'lost_trajectory'
            WHEN judged.stale THEN 'stale'
        END AS cause
    FROM turn
    LEFT JOIN ended USING (run_id, provenance, trajectory_id)
    LEFT JOIN judged USING (run_id, provenance, trajectory_id)
    WHERE (getvariable('since') IS NULL OR turn.event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR turn.event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR turn.run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR turn.device_id = getvariable('device_id'))
    UNION ALL
    SELECT rl_run_id, run_id, provenance, device_id, tokens_lost, 'preemption'
    FROM preemption
    WHERE tokens_lost > 0
      AND (getvariable('since') IS NULL OR preemption.event_time >= getvariable('since')::TIMESTAMP)
        AND (getvariable('until') IS NULL OR preemption.event_time < getvariable('until')::TIMESTAMP)
        AND (getvariable('run_id') IS NULL OR rl_run_id = getvariable('run_id'))
        AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
),
placed AS (
    SELECT
        made.run_id, made.provenance,
        CASE device.pool WHEN 'serving' THEN 'borrowed' WHEN 'rollout' THEN 'dedicated' WHEN 'train' THEN 'dedicated'
                         ELSE 'unallocated' END AS made_on,
        made.cause,
        sum(made.tokens) AS tokens
    FROM made
    LEFT JOIN device
        ON made.fleet_run_id = device.run_id AND made.provenance = device.provenance
       AND made.device_id = device.device_id
    GROUP BY ALL
),
shared AS (
    SELECT *, sum(tokens) OVER (PARTITION BY run_id, provenance, made_on) AS generated
    FROM placed
)
SELECT
    provenance, run_id, made_on, cause,
    tokens::BIGINT AS wasted_tokens,
    generated::BIGINT AS generated_tokens,
    tokens / nullif(generated, 0) AS wasted_share
FROM shared
WHERE cause IS NOT NULL
ORDER BY run_id, provenance, made_on, wasted_tokens DESC, cause;
