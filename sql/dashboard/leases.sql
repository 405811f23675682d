-- The newest 500 leases of a fleet in force in [from_ns, to_ns), newest first; `leases` counts all of them. `until` is
-- when the lease closed; for an open one its expiry, or the fleet's newest event if that came first.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH newest AS (
    SELECT make_timestamp(max(newest_at_us)) AS newest_at FROM daily_event WHERE run_id = getvariable('run_id')
)
SELECT
    lease_id, coalesce(device_id, 'unknown') AS device_id, rl_run_id, step, granted_at,
    greatest(granted_at, coalesce(closed_at, least(expires_at, newest_at))) AS until,
    (epoch_us(until) - epoch_us(granted_at)) / 1e6 AS seconds,
    coalesce(closed_by, 'open') AS closed_by, close_reason,
    kv_budget_granted_bytes / 1e6 AS kv_granted_mb,
    kv_budget_min_bytes / 1e6 AS kv_least_mb,
    renewals,
    count(*) OVER () AS leases
FROM lease, newest
WHERE run_id = getvariable('run_id')
  AND granted_at < make_timestamp(getvariable('to_ns') // 1000)
  AND greatest(granted_at, coalesce(closed_at, least(expires_at, newest_at)))
      >= make_timestamp(getvariable('from_ns') // 1000)
ORDER BY granted_at DESC, lease_id
LIMIT 500;
