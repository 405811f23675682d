-- The events of an RL run that shares fleets, and of these what the run had there, and what is nobody's, as if all were
-- of one run: without the leases of others, the time that was lent to them and the requests that arrived then, so that
-- what is compared is time lent to this run and time not lent.
-- By hand: SET VARIABLE run_id = '...';
WITH fleet AS (
    SELECT DISTINCT fleet_run_id AS run_id
    FROM event
    WHERE kind = 'run' AND run_id = getvariable('run_id') AND fleet_run_id <> run_id
),
shared AS (
    FROM event SEMI JOIN fleet USING (run_id)
),
leased AS (
    SELECT run_id, lease_id FROM shared WHERE kind = 'lease' AND rl_run_id = getvariable('run_id')
    UNION
    SELECT run_id, lease_id FROM shared WHERE kind = 'device_slice' AND rollout_run_id = getvariable('run_id')
)
SELECT * FROM event WHERE run_id = getvariable('run_id')
UNION ALL BY NAME
SELECT * REPLACE (getvariable('run_id') AS run_id)
FROM shared
WHERE CASE
    WHEN kind IN ('preemption', 'hold', 'sync') THEN rl_run_id = getvariable('run_id')
    WHEN kind = 'lease' THEN (run_id, lease_id) IN (FROM leased)
    WHEN kind = 'device_slice' THEN rollout_run_id = getvariable('run_id')
        OR lease_id IS NULL AND rollout_ns + sync_ns + activation_ns + headroom_ns = 0
    WHEN kind = 'request' THEN lease_id IS NULL OR (run_id, lease_id) IN (FROM leased)
    -- What was let go was let go because of all that borrow.
    WHEN kind = 'scale_down' THEN decision = 'kept'
    ELSE kind IN ('device', 'engine', 'holdout', 'power')
    END;
