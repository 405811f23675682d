-- The newest 500 leases of those in force in [from_ns, to_ns), newest first; `leases` is how many there were in all.
-- `until` is when the lease closed, or for an open one its expiry or the end of the last slice that names it, whichever
-- came first: that is the last that its agent said. Where no slice does, the end or last event of the run stands for
-- it. Of an RL run that shares a fleet it is every lease of which some event names the run: `seconds` are all of it,
-- whoever had it then, and `own_seconds` those in which the run had it by the slices that name the lease, NULL where
-- none does. Of one that was on several, a device is named after its fleet. Reads the macros that
-- `lease_parts_by_run` and `own_device_time` make.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH last AS (
    SELECT coalesce(
        (SELECT max(ended_at) FROM run WHERE run_id = getvariable('run_id')),
        (SELECT make_timestamp(max(newest_at_us)) FROM daily_event WHERE run_id = getvariable('run_id'))
    ) AS newest_at
),
granted AS (
    SELECT
        lease_id, run_id, step, granted_at, closed_at, expires_at,
        CASE WHEN (SELECT several FROM fleets_of_run()) THEN run_id || '/' ELSE '' END || coalesce(device_id, 'unknown')
            AS device_id,
        coalesce(closed_by, 'open') AS closed_by, close_reason,
        kv_budget_granted_bytes, kv_budget_min_bytes, renewals, frozen,
        count(closed_at) OVER (ORDER BY granted_at DESC, lease_id) AS closed
    FROM lease
    WHERE granted_at < make_timestamp(getvariable('to_ns') // 1000)
      AND greatest(granted_at, coalesce(closed_at, expires_at)) >= make_timestamp(getvariable('from_ns') // 1000)
      AND (run_id, lease_id) IN (
          SELECT run_id, lease_id FROM lease_event WHERE getvariable('run_id') IN (run_id, rl_run_id)
      )
),
-- A lease than which 500 closed ones are newer is not shown.
asked AS (FROM granted WHERE closed_at IS NULL OR closed <= 500 AND run_id <> getvariable('run_id')),
slice AS (
    SELECT run_id, lease_id, rollout_run_id AS assigned_run_id, t0_ns, t1_ns
    FROM device_slice
    SEMI JOIN asked USING (run_id, lease_id)
    -- Files that are older are not read.
    WHERE t1_ns >= (SELECT min(epoch_ns(granted_at)) FROM asked)
),
part AS (FROM lease_parts_by_run('slice')),
named AS (SELECT run_id, lease_id, make_timestamp(max(last_ns) // 1000) AS last_at FROM part GROUP BY ALL),
shown AS (
    SELECT
        granted.*,
        greatest(granted_at, coalesce(closed_at, least(expires_at, coalesce(last_at, newest_at)), granted_at)) AS until,
        count(*) OVER () AS leases
    FROM granted
    CROSS JOIN last
    LEFT JOIN named USING (run_id, lease_id)
    WHERE until >= make_timestamp(getvariable('from_ns') // 1000)
    QUALIFY row_number() OVER (ORDER BY granted_at DESC, lease_id) <= 500
),
own AS (
    SELECT
        run_id, lease_id,
        sum(
            CASE WHEN assigned_run_id = getvariable('run_id')
                THEN greatest(least(epoch_ns(until), to_ns) - greatest(epoch_ns(granted_at), from_ns), 0) ELSE 0 END
        ) / 1e9 AS seconds
    FROM shown
    JOIN part USING (run_id, lease_id)
    WHERE run_id <> getvariable('run_id')
    GROUP BY ALL
)
SELECT
    lease_id, run_id, device_id, step, granted_at, until, closed_by, close_reason,
    (epoch_us(until) - epoch_us(granted_at)) / 1e6 AS seconds,
    CASE WHEN run_id = getvariable('run_id') THEN (epoch_us(until) - epoch_us(granted_at)) / 1e6
         ELSE own.seconds END AS own_seconds,
    kv_budget_granted_bytes / 1e6 AS kv_granted_mb,
    kv_budget_min_bytes / 1e6 AS kv_least_mb,
    renewals, frozen, leases
FROM shown
LEFT JOIN own USING (run_id, lease_id)
ORDER BY granted_at DESC, lease_id;
