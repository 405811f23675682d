-- For the infra lead: what kept rollouts from serving devices, and for how long?
--
-- since (TIMESTAMP): only refusals at or after this time, UTC.
-- until (TIMESTAMP): only refusals before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Longest first. `leased` says whether the refusals were under a lease. For a reason without a lease, `explanation` is
-- the newest. `held_share` is the row's part of the time in which the device's rollouts were held. Refusals while
-- serving worked count, too, so that time is more than the device's headroom.
WITH held AS (
    SELECT
        provenance, run_id, device_id, lease_id IS NOT NULL AS leased, reason,
        sum(count)::BIGINT AS holds, sum(duration_ns)::BIGINT AS held_ns,
        arg_max(explanation, event_time) AS explanation
    FROM hold
    WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (run_id, rl_run_id))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
    GROUP BY ALL
)
SELECT *, held_ns / nullif(sum(held_ns) OVER (PARTITION BY provenance, run_id, device_id), 0) AS held_share
FROM held
ORDER BY run_id, provenance, device_id, held_ns DESC, reason, leased;
