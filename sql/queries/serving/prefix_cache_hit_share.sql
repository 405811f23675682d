-- For the RL engineer: which share of the prompt tokens did each engine find in its prefix cache, and what did moving a
-- turn cost?
--
-- since (TIMESTAMP): only turns recorded at or after this time, UTC.
-- until (TIMESTAMP): only turns recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `recomputed_tokens` are uncached prompt tokens of attempts that follow a preempted one of the same turn: work that
-- the preemption caused again. First turns find little in the cache; `later_cached_share` leaves them out.
WITH attempt AS (
    SELECT
        *,
        lag(outcome) OVER (PARTITION BY run_id, provenance, trajectory_id, turn ORDER BY attempt) AS outcome_before
    FROM turn
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
)
SELECT
    attempt.provenance, attempt.run_id, attempt.device_id, device.pool, attempt.engine_id,
    count(*) AS attempts,
    sum(attempt.prompt_tokens)::BIGINT AS prompt_tokens,
    sum(attempt.cached_tokens)::BIGINT AS cached_tokens,
    sum(attempt.cached_tokens) / nullif(sum(attempt.prompt_tokens), 0) AS cached_share,
    sum(attempt.cached_tokens) FILTER (attempt.turn > 0)
        / nullif(sum(attempt.prompt_tokens) FILTER (attempt.turn > 0), 0) AS later_cached_share,
    coalesce(
        sum(attempt.prompt_tokens - attempt.cached_tokens) FILTER (attempt.outcome_before = 'preempted'), 0
    )::BIGINT AS recomputed_tokens
FROM attempt
LEFT JOIN device
    ON attempt.fleet_run_id = device.run_id AND attempt.provenance = device.provenance
   AND attempt.device_id = device.device_id
WHERE (getvariable('since') IS NULL OR attempt.event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR attempt.event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('device_id') IS NULL OR attempt.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY attempt.run_id, attempt.provenance, attempt.device_id, attempt.engine_id;
