-- Times of serving devices in [from_ns, to_ns). A slice counts where it begins.
--   delayed_ns: delay of serving's steps beyond the rollout work beside them; 0 where nothing ran beside serving, or an
--       older version wrote the ledger.
--   withheld_idle_ns: idle time without a lease, in windows in which leases were withheld at random.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH slice AS (
    FROM device_slice
    WHERE provenance = getvariable('provenance')
      AND t0_ns >= getvariable('from_ns') AND t0_ns < getvariable('to_ns')
),
drawn AS (
    SELECT
        run_id, provenance, device_id, withheld, t0_ns,
        -- An agent that was started again drew the rest of the window anew.
        least(t1_ns, coalesce(lead(t0_ns) OVER (PARTITION BY run_id, device_id ORDER BY t0_ns), t1_ns)) AS t1_ns
    FROM holdout
)
SELECT
    (SELECT coalesce(sum(delayed_ns - beside_work_ns), 0)::BIGINT FROM slice) AS delayed_ns,
    (
        SELECT coalesce(sum(s.idle_ns / s.ns * (least(s.t1_ns, d.t1_ns) - greatest(s.t0_ns, d.t0_ns))), 0)::BIGINT
        FROM slice AS s
        JOIN drawn AS d USING (run_id, provenance, device_id)
        WHERE d.withheld AND s.lease_id IS NULL AND s.ns > 0 AND d.t0_ns < s.t1_ns AND s.t0_ns < d.t1_ns
    ) AS withheld_idle_ns;
