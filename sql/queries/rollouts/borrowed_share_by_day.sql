-- For the finance lead: which share of the rollout tokens was made on borrowed devices, by day?
--
-- since (TIMESTAMP): only turns recorded at or after this time, UTC.
-- until (TIMESTAMP): only turns recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `borrowed_share` is a share of all tokens that turns made, useful or not; `wasted_tokens_by_cause` says which were
-- not useful. A turn counts on the day (UTC) on which it was recorded.
SELECT
    turn.event_time::DATE AS day,
    turn.provenance,
    coalesce(sum(turn.output_tokens) FILTER (device.pool = 'serving'), 0)::BIGINT AS borrowed_tokens,
    coalesce(sum(turn.output_tokens) FILTER (device.pool IN ('rollout', 'train')), 0)::BIGINT AS dedicated_tokens,
    sum(turn.output_tokens)::BIGINT AS tokens,
    coalesce(sum(turn.output_tokens) FILTER (device.pool = 'serving'), 0) / nullif(sum(turn.output_tokens), 0)
        AS borrowed_share
FROM turn
LEFT JOIN device
    ON turn.fleet_run_id = device.run_id AND turn.provenance = device.provenance AND turn.device_id = device.device_id
WHERE (getvariable('since') IS NULL OR turn.event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR turn.event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR turn.run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR turn.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY day, turn.provenance;
