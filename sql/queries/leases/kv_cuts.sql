-- For the infra lead: when was the KV budget of a lease cut, by how much, and how many rollout requests had to move?
--
-- since (TIMESTAMP): only preemptions at or after this time, UTC.
-- until (TIMESTAMP): only preemptions before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Newest first. A cut halves the budget once and freezes it for the rest of the lease. `took_ns` is from when serving
-- crossed the watermark until the memory was free. `returned_bytes` is how much of the memory the system got back.
SELECT
    event_time, provenance, run_id, device_id, engine_id, lease_id, step, reason,
    kv_budget_bytes_before, kv_budget_bytes_after,
    kv_budget_bytes_before - kv_budget_bytes_after AS cut_bytes,
    requests, tokens_kept, tokens_lost, duration_ns AS took_ns, returned_bytes
FROM preemption
WHERE action = 'cut'
  AND (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
    AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
    AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (run_id, rl_run_id))
    AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
ORDER BY event_time DESC, writer, seq;
