-- For the infra lead: how do leases end, why, and how long did they last?
--
-- since (TIMESTAMP): only leases granted at or after this time, UTC.
-- until (TIMESTAMP): only leases granted before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `open` leases are those that nothing has closed: `open_leases` lists them, and they count in no duration. The rows of
-- a run sum to the leases that it granted. For an RL run that shares a fleet, these are the leases first granted for
-- it. Each counts with all its time, even if another run had it later: `rose report` has the run's part.
SELECT
    provenance, run_id,
    coalesce(closed_by, 'open') AS closed_by,
    close_reason,
    count(*) AS leases,
    sum(duration_ns)::BIGINT AS leased_ns,
    quantile_disc(duration_ns, 0.5) AS duration_p50_ns,
    max(duration_ns) AS duration_max_ns,
    count(*) FILTER (frozen) AS frozen
FROM lease
WHERE (getvariable('since') IS NULL OR granted_at >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR granted_at < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (run_id, rl_run_id))
  AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY run_id, provenance, leases DESC, closed_by, close_reason;
