-- When an RL run had devices and leases of the fleets that it shares, and when other runs had them meanwhile, by all
-- events of the ledger, as three tables. They are empty of any other run, whose time is all there is, and whose leases
-- are whole.
--   own_time: its time on each device, from its first work or lease there to its last; another run had it next at
--             `next_ns`, NULL where none did.
--   other_run_slice: the slices in that time of what was assigned or lent to other runs.
--   lease_part: what of each lease was its own, empty where it was another's. It is of the run that its first slice
--               names from its grant on, then of the next one from where a slice names that, and of the last one to its
--               end, so that the parts of all runs are the lease. The last slice that names it ends at `last_ns`.
-- By hand: SET VARIABLE run_id = '...';
CREATE OR REPLACE TEMP TABLE own_time (run_id VARCHAR, device_id VARCHAR, from_ns BIGINT, to_ns BIGINT, next_ns BIGINT);
CREATE OR REPLACE TEMP TABLE other_run_slice (
    run_id VARCHAR, device_id VARCHAR, t0_ns BIGINT, t1_ns BIGINT, leased BOOLEAN
);
CREATE OR REPLACE TEMP TABLE lease_part (
    run_id VARCHAR, lease_id VARCHAR, from_ns BIGINT, to_ns BIGINT, last_ns BIGINT
);

CREATE OR REPLACE TEMP TABLE fleet_slice AS
WITH fleet AS (
    SELECT DISTINCT fleet_run_id AS run_id
    FROM event
    WHERE kind = 'run' AND run_id = getvariable('run_id') AND fleet_run_id <> run_id
)
SELECT
    run_id, device_id, lease_id, coalesce(rollout_run_id, run_id) AS assigned_run_id, t0_ns, t1_ns,
    -- An engine stays assigned to a run that ended until another wants it, so that alone is not the run's time.
    coalesce(
        rollout_run_id = getvariable('run_id')
            AND (lease_id IS NOT NULL OR (rollout_ns | sync_ns | activation_ns | headroom_ns) > 0), false
    ) OR coalesce(train_run_id = getvariable('run_id') AND train_ns > 0, false) AS own,
    -- Unassigned time belongs to another run only under a lease.
    assigned_run_id <> getvariable('run_id') AND (lease_id IS NOT NULL OR assigned_run_id <> run_id) AS other
FROM event
SEMI JOIN fleet USING (run_id)
WHERE kind = 'device_slice' AND (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 AND t0_ns < t1_ns
  AND (lease_id IS NOT NULL OR rollout_run_id IS NOT NULL OR train_run_id IS NOT NULL);

INSERT INTO own_time
WITH own AS (
    SELECT run_id, device_id, min(t0_ns) AS from_ns, max(t1_ns) AS to_ns
    FROM fleet_slice
    WHERE own
    GROUP BY run_id, device_id
)
SELECT o.run_id, o.device_id, o.from_ns, o.to_ns, min(s.t0_ns)
FROM own AS o
LEFT JOIN fleet_slice AS s ON s.run_id = o.run_id AND s.device_id = o.device_id AND s.other AND s.t0_ns >= o.to_ns
GROUP BY ALL;

INSERT INTO other_run_slice
SELECT s.run_id, s.device_id, greatest(s.t0_ns, o.from_ns), least(s.t1_ns, o.to_ns), s.lease_id IS NOT NULL
FROM fleet_slice AS s
JOIN own_time AS o ON o.run_id = s.run_id AND o.device_id = s.device_id AND s.t0_ns < o.to_ns AND o.from_ns < s.t1_ns
WHERE s.other;

INSERT INTO lease_part
WITH change AS (
    SELECT
        run_id, lease_id, assigned_run_id, t0_ns, lag(assigned_run_id) OVER lease AS run_before,
        max(t1_ns) OVER (PARTITION BY run_id, lease_id) AS last_ns
    FROM fleet_slice
    WHERE lease_id IS NOT NULL
    WINDOW lease AS (PARTITION BY run_id, lease_id ORDER BY t0_ns)
),
part AS (
    SELECT
        run_id, lease_id, assigned_run_id, CASE WHEN run_before IS NULL THEN 0 ELSE t0_ns END AS from_ns,
        lead(t0_ns, 1, 9223372036854775807) OVER (PARTITION BY run_id, lease_id ORDER BY t0_ns) AS to_ns, last_ns
    FROM change
    WHERE run_before IS DISTINCT FROM assigned_run_id
)
SELECT
    run_id, lease_id, from_ns, CASE WHEN assigned_run_id = getvariable('run_id') THEN to_ns ELSE from_ns END, last_ns
FROM part;

DROP TABLE fleet_slice;
