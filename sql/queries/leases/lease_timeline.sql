-- For the RL engineer: what happened to a lease, change by change, with every preemption and weight sync under it?
--
-- since (TIMESTAMP): only events at or after this time, UTC.
-- until (TIMESTAMP): only events before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
-- lease_id (VARCHAR): only this lease.
--
-- Lease by lease, in order of time; set `lease_id` to follow one lease. `since_grant_ns` is the time since the grant,
-- to the microsecond. The yields of one second have one row, at the start of the first. A sync has its row at its end.
-- `duration_ns` is how long the yields or the sync took.
WITH happened AS (
    SELECT
        lease_event.event_time, provenance, run_id, lease_id, device_id, engine_id, 'lease' AS kind, action, reason,
        kv_budget_bytes, expires_at, NULL::BIGINT AS duration_ns, rl_run_id, writer, seq
    FROM lease_event
    UNION ALL
    SELECT
        preemption.event_time, provenance, run_id, lease_id, device_id, engine_id, 'preemption', action, reason,
        kv_budget_bytes_after, NULL, duration_ns, rl_run_id, writer, seq
    FROM preemption
    UNION ALL
    SELECT
        sync.event_time, provenance, run_id, lease_id, device_id, engine_id, 'sync',
        CASE WHEN ok THEN 'synced' ELSE 'failed' END, reason, NULL, NULL, total_ns, rl_run_id, writer, seq
    FROM sync
)
SELECT
    happened.event_time, happened.provenance, happened.run_id, happened.lease_id, happened.device_id,
    happened.engine_id,
    happened.kind, happened.action, happened.reason, happened.kv_budget_bytes, happened.expires_at,
    happened.duration_ns,
    1000 * (epoch_us(happened.event_time) - epoch_us(lease.granted_at)) AS since_grant_ns
FROM happened
JOIN lease USING (run_id, provenance, lease_id)
WHERE (getvariable('since') IS NULL OR happened.event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR happened.event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (happened.run_id, happened.rl_run_id))
  AND (getvariable('device_id') IS NULL OR happened.device_id = getvariable('device_id'))
  AND (getvariable('lease_id') IS NULL OR happened.lease_id = getvariable('lease_id'))
ORDER BY lease.granted_at, happened.run_id, happened.lease_id, happened.event_time, happened.writer, happened.seq;
