-- When an RL run had devices and leases of the fleets that it shares, and when other runs had them meanwhile, by all
-- events of the ledger. Fills the tables `own_time`, `other_run_slice` and `lease_part`, which `own_time` makes. Reads
-- the macro `lease_parts_by_run`, which `lease_parts_by_run` makes.
-- By hand: SET VARIABLE run_id = '...';
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
    -- Time that is assigned to nobody is another's only under a lease.
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
SELECT
    run_id, lease_id, from_ns, CASE WHEN assigned_run_id = getvariable('run_id') THEN to_ns ELSE from_ns END, last_ns
FROM lease_parts_by_run('fleet_slice');

DROP TABLE fleet_slice;
