-- The newest 500 leases of those in force in [from_ns, to_ns), newest first; `leases` is how many there were in all.
-- `until` is when the lease closed, or for an open one its expiry or the end or last event of the run, whichever came
-- first. Of an RL run that shares a fleet it is every lease of which some event names the run, each with all of its time,
-- whoever had it then.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH last AS (
    SELECT coalesce(
        (SELECT max(ended_at) FROM run WHERE run_id = getvariable('run_id')),
        (SELECT make_timestamp(max(newest_at_us)) FROM daily_event WHERE run_id = getvariable('run_id'))
    ) AS newest_at
),
granted AS (
    SELECT
        lease_id, run_id, coalesce(device_id, 'unknown') AS device_id, step, granted_at,
        greatest(granted_at, coalesce(closed_at, least(expires_at, last.newest_at), granted_at)) AS until,
        coalesce(closed_by, 'open') AS closed_by, close_reason,
        kv_budget_granted_bytes, kv_budget_min_bytes, renewals, frozen
    FROM lease, last
    WHERE granted_at IS NOT NULL
      AND (run_id, lease_id) IN (
          SELECT run_id, lease_id FROM lease_event WHERE getvariable('run_id') IN (run_id, rl_run_id)
      )
)
SELECT
    lease_id, run_id, device_id, step, granted_at, until, closed_by, close_reason,
    (epoch_us(until) - epoch_us(granted_at)) / 1e6 AS seconds,
    kv_budget_granted_bytes / 1e6 AS kv_granted_mb,
    kv_budget_min_bytes / 1e6 AS kv_least_mb,
    renewals, frozen,
    count(*) OVER () AS leases
FROM granted
WHERE granted_at < make_timestamp(getvariable('to_ns') // 1000)
  AND until >= make_timestamp(getvariable('from_ns') // 1000)
ORDER BY granted_at DESC, lease_id
LIMIT 500;
