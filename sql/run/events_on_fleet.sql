-- The events of an RL run that shares fleets, and of these what the run had there, and what is nobody's, as if all were
-- of one run: of each device in the run's own time there, without the leases of others, the time that was lent to them
-- and the requests that arrived and the power that was read then, so that what is compared is time lent to this run and
-- time not lent. `fleet_run_id` says of which fleet each is: two may call their engines alike. Reads the tables
-- `own_time` and `other_run_slice`, which `time_on_fleet` makes.
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
),
timed AS (
    SELECT
        s.*, o.from_ns, o.to_ns,
        -- A request counts where it arrived, anything else up to its last nanosecond.
        CASE WHEN kind = 'request' THEN 1000 * at_us - greatest(e2e_ns, 0) ELSE greatest(t1_ns, 1) - 1 END AS last_ns
    FROM shared AS s
    JOIN own_time AS o ON o.run_id = s.run_id AND o.device_id = s.device_id
    WHERE kind IN ('device_slice', 'holdout', 'power', 'request')
)
SELECT * FROM event
WHERE run_id = getvariable('run_id') AND NOT (kind = 'scale_down' AND coalesce(decision = 'let_go', false))
UNION ALL BY NAME
SELECT * REPLACE (
    getvariable('run_id') AS run_id, run_id AS fleet_run_id,
    -- A lease that was granted without a run is the fleet's, though the run had a part of it.
    CASE WHEN kind = 'lease' THEN coalesce(rl_run_id, run_id) ELSE rl_run_id END AS rl_run_id
)
FROM shared
WHERE CASE
    WHEN kind IN ('preemption', 'hold', 'sync') THEN rl_run_id = getvariable('run_id')
    WHEN kind = 'lease' THEN (run_id, lease_id) IN (FROM leased)
    WHEN kind = 'engine' THEN (run_id, device_id) IN (SELECT run_id, device_id FROM own_time)
    -- A released device counts for all borrowers, whichever run its event names.
    WHEN kind = 'scale_down' THEN decision = 'kept'
    ELSE false
    END
UNION ALL BY NAME
-- A device that fleets call alike is that of each in the run's own time there.
SELECT s.* REPLACE (
    getvariable('run_id') AS run_id, s.run_id AS fleet_run_id,
    CASE WHEN alike.device_id IS NULL THEN t_ns ELSE greatest(t_ns, o.from_ns) END AS t_ns
)
FROM shared AS s
LEFT JOIN own_time AS o ON o.run_id = s.run_id AND o.device_id = s.device_id
LEFT JOIN (SELECT device_id FROM own_time GROUP BY device_id HAVING count(*) > 1) AS alike
    ON alike.device_id = s.device_id
WHERE kind = 'device' AND CASE
    WHEN alike.device_id IS NOT NULL THEN t_ns < o.to_ns AND (action = 'joined' OR o.from_ns < t_ns)
    ELSE o.run_id IS NOT NULL OR s.device_id NOT IN (SELECT device_id FROM own_time)
    END
UNION ALL BY NAME
SELECT t.* EXCLUDE (from_ns, to_ns, last_ns) REPLACE (getvariable('run_id') AS run_id, t.run_id AS fleet_run_id)
FROM timed AS t
ASOF LEFT JOIN (FROM other_run_slice WHERE leased) AS other
    ON t.run_id = other.run_id AND t.device_id = other.device_id AND t.last_ns >= other.t0_ns
WHERE CASE t.kind
    WHEN 'device_slice' THEN t.from_ns <= t.t0_ns AND t.t1_ns <= t.to_ns AND (
        t.rollout_run_id = getvariable('run_id')
        OR t.lease_id IS NULL AND t.rollout_ns + t.sync_ns + t.activation_ns + t.headroom_ns = 0
    )
    -- A window counts whole, whatever part of it the run was there, and of its requests those of that part.
    WHEN 'holdout' THEN t.t0_ns < t.to_ns AND t.from_ns < t.t1_ns
    WHEN 'request' THEN t.from_ns <= t.last_ns AND t.last_ns < t.to_ns AND coalesce(other.t1_ns <= t.last_ns, true)
        AND (t.lease_id IS NULL OR (t.run_id, t.lease_id) IN (FROM leased))
    WHEN 'power' THEN t.from_ns <= t.t0_ns AND t.t1_ns <= t.to_ns AND coalesce(other.t1_ns <= t.t0_ns, true)
    END;
