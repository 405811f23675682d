-- For the RL engineer: where do turns go and why, and what becomes of them there?
--
-- since (TIMESTAMP): only turns recorded at or after this time, UTC.
-- until (TIMESTAMP): only turns recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Each attempt counts once. `placement` is the router's reason. `prefix`: the engine holds the prefix. `lease`: the
-- least loaded engine is borrowed. `least_loaded`: the least loaded engine is dedicated. `queue`: at first no engine
-- could take the turn. `share` is a share of the run's attempts.
SELECT
    turn.provenance, turn.run_id, turn.placement, device.pool,
    count(*) AS attempts,
    count(*) / sum(count(*)) OVER (PARTITION BY turn.run_id, turn.provenance) AS share,
    count(*) FILTER (turn.outcome = 'completed') AS completed,
    count(*) FILTER (turn.outcome = 'preempted') AS preempted,
    count(*) FILTER (turn.outcome = 'failed') AS failed,
    sum(turn.output_tokens)::BIGINT AS output_tokens,
    sum(turn.cached_tokens) / nullif(sum(turn.prompt_tokens), 0) AS cached_share,
    quantile_disc(turn.duration_ns, 0.5) AS duration_p50_ns
FROM turn
LEFT JOIN device
    ON turn.fleet_run_id = device.run_id AND turn.provenance = device.provenance AND turn.device_id = device.device_id
WHERE (getvariable('since') IS NULL OR turn.event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR turn.event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR turn.run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR turn.device_id = getvariable('device_id'))
GROUP BY turn.provenance, turn.run_id, turn.placement, device.pool
ORDER BY turn.run_id, turn.provenance, attempts DESC, turn.placement, pool;
