-- The newest 500 leases, newest first. `until` is when the lease closed, or for an open one its expiry or the run's
-- last event, whichever came first.
-- By hand: SET VARIABLE run_id = '...';
WITH last AS (SELECT max(event_time) AS newest_at FROM event WHERE run_id = getvariable('run_id'))
SELECT
    lease_id, device_id, step, granted_at,
    coalesce(closed_at, least(expires_at, last.newest_at)) AS until,
    coalesce(closed_by, 'open') AS closed_by,
    close_reason,
    epoch_us(coalesce(closed_at, least(expires_at, last.newest_at))) / 1e6 - epoch_us(granted_at) / 1e6 AS seconds,
    kv_budget_granted_bytes / 1e6 AS kv_granted_mb,
    kv_budget_min_bytes / 1e6 AS kv_least_mb,
    renewals, frozen
FROM lease, last
WHERE getvariable('run_id') IN (run_id, rl_run_id) AND granted_at IS NOT NULL
ORDER BY granted_at DESC, lease_id
LIMIT 500;
