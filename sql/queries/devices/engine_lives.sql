-- For the infra lead: when did each engine start, how long did starting take, and how did it end?
--
-- since (TIMESTAMP): only engines started at or after this time, UTC.
-- until (TIMESTAMP): only engines started before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- One row for each life; a restarted engine has several. `start_ns` is the time from the launch until the engine
-- answered. An engine that its owner started lives from when it was attached, and its `start_ns` is NULL. `ended_by` is
-- `stopped`, `detached` or `died`. It is NULL while the engine lives, or if the process that would have recorded the
-- end is gone. `activated_ns` is the time that later activations of the engine's model took.
WITH change AS (
    SELECT
        *,
        count(*) FILTER (action IN ('started', 'attached')) OVER (
            PARTITION BY run_id, provenance, engine_id ORDER BY event_time, writer, seq
        ) AS life
    FROM engine
    WHERE action <> 'refused'
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
),
lived AS (
    SELECT
        provenance, run_id, engine_id, life,
        arg_min(device_id, event_time) AS device_id,
        arg_min(role, event_time) AS role,
        arg_min(model, event_time) AS model,
        min(event_time) FILTER (action IN ('started', 'attached')) AS started_at,
        min(duration_ns) FILTER (action = 'started') AS start_ns,
        count(*) FILTER (action = 'activated') AS activations,
        coalesce(sum(duration_ns) FILTER (action = 'activated'), 0)::BIGINT AS activated_ns,
        arg_max(action, event_time) FILTER (action IN ('stopped', 'detached', 'died')) AS ended_by,
        max(event_time) FILTER (action IN ('stopped', 'detached', 'died')) AS ended_at,
        arg_max(reason, event_time) FILTER (action IN ('stopped', 'detached', 'died')) AS reason,
        arg_min(memory_mechanism, event_time) AS memory_mechanism,
        arg_min(compute_mechanism, event_time) AS compute_mechanism
    FROM change
    -- An engine may release its memory before it first answers.
    WHERE life > 0 OR action NOT IN ('activated', 'deactivated')
    GROUP BY ALL
)
SELECT
    provenance, run_id, engine_id, device_id, role, model, started_at, start_ns, activations, activated_ns,
    ended_by, ended_at, reason,
    1000 * (epoch_us(ended_at) - epoch_us(started_at)) AS life_ns,
    memory_mechanism, compute_mechanism
FROM lived
WHERE (getvariable('since') IS NULL OR started_at >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR started_at < getvariable('until')::TIMESTAMP)
ORDER BY started_at, run_id, engine_id;
