-- The macro `lease_parts_by_run`: what each run had of leases, by a table of slices that name these and whose time it
-- was: `run_id` (the fleet's), `lease_id`, `assigned_run_id`, `t0_ns` and `t1_ns`. A lease is of the run that its first
-- slice names from its grant on, then of the next one from where a slice names that, and of the last one to its end, so
-- that the parts of all runs are the lease. `last_ns` is when the last slice ends that names the lease at all.
CREATE OR REPLACE TEMP MACRO lease_parts_by_run(slices) AS TABLE
WITH change AS (
    SELECT
        run_id, lease_id, assigned_run_id, t0_ns, lag(assigned_run_id) OVER lease AS run_before,
        max(t1_ns) OVER (PARTITION BY run_id, lease_id) AS last_ns
    FROM query_table(slices)
    WHERE lease_id IS NOT NULL AND t0_ns < t1_ns
    WINDOW lease AS (PARTITION BY run_id, lease_id ORDER BY t0_ns)
)
SELECT
    run_id, lease_id, assigned_run_id, CASE WHEN run_before IS NULL THEN 0 ELSE t0_ns END AS from_ns,
    lead(t0_ns, 1, 9223372036854775807) OVER (PARTITION BY run_id, lease_id ORDER BY t0_ns) AS to_ns, last_ns
FROM change
WHERE run_before IS DISTINCT FROM assigned_run_id;
