-- Events while devices were lent, as rows of six kinds. A sum is NULL if some events did not record its value.
--   lease: leases on serving devices by how they closed. Of RL runs that share a fleet each lease counts for the one
--          that it was first granted for, so that those of all are the fleet's.
--   preemption: by action; `ns` is the time that was waited.
--   sync: weight syncs to any device, `ok` or `failed`; `ns` is the pause.
--   leased unused: idle time of serving devices inside of their leases: lent, and rollouts had nothing to do there.
--   withheld idle: idle time of serving devices without a lease, in windows in which leases were withheld at random.
--   delayed beyond work: by how much serving's steps were delayed beyond the rollout work beside them, over all
--          devices: 0 where nothing ran beside serving, or the ledger is from before that.
-- By hand: SET VARIABLE run_id = '...';
SELECT 'lease' AS what, coalesce(closed_by, 'open') AS name, count(*) AS number
FROM lease
WHERE rl_run_id = getvariable('run_id')
   OR run_id = getvariable('run_id')
  AND run_id = (SELECT any_value(fleet_run_id) FROM run WHERE run.run_id = getvariable('run_id'))
GROUP BY ALL
UNION ALL BY NAME
SELECT
    'preemption' AS what, action AS name,
    coalesce(sum(coalesce(count, 1)), 0)::BIGINT AS number,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) END AS ns,
    CASE WHEN count(*) = count(requests) THEN sum(requests) END AS requests,
    CASE WHEN count(*) = count(tokens_kept) THEN sum(tokens_kept) END AS tokens_kept,
    CASE WHEN count(*) = count(tokens_lost) THEN sum(tokens_lost) END AS tokens_lost
FROM preemption
WHERE getvariable('run_id') IN (run_id, rl_run_id)
GROUP BY ALL
UNION ALL BY NAME
SELECT
    'sync' AS what, CASE WHEN ok THEN 'ok' ELSE 'failed' END AS name, count(*) AS number,
    coalesce(sum(pause_ns), 0) AS ns, sum(wire_bytes) AS wire_bytes, sum(dense_bytes) AS dense_bytes
FROM sync
WHERE run_id = getvariable('run_id')
GROUP BY ALL
UNION ALL BY NAME
SELECT 'leased unused' AS what, coalesce(sum(s.idle_ns), 0)::BIGINT AS ns
FROM device_slice AS s
SEMI JOIN tenure AS t
    ON t.run_id = s.run_id AND t.provenance = s.provenance AND t.device_id = s.device_id
   AND t.pool = 'serving' AND t.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(t.left_ns, s.t1_ns)
WHERE getvariable('run_id') IN (s.run_id, s.rollout_run_id) AND s.lease_id IS NOT NULL
UNION ALL BY NAME
SELECT
    'withheld idle' AS what,
    coalesce(sum(s.idle_ns / s.ns * (least(s.t1_ns, h.t1_ns) - greatest(s.t0_ns, h.t0_ns))), 0)::BIGINT AS ns
FROM device_slice AS s
JOIN (
    SELECT * REPLACE (
        -- An agent that was started again drew the rest of the window anew.
        least(t1_ns, coalesce(lead(t0_ns) OVER (PARTITION BY run_id, device_id ORDER BY t0_ns), t1_ns)) AS t1_ns
    )
    FROM holdout
) AS h
    ON h.run_id = s.run_id AND h.device_id = s.device_id AND h.t0_ns < s.t1_ns AND s.t0_ns < h.t1_ns
WHERE s.run_id = getvariable('run_id') AND h.withheld AND s.lease_id IS NULL AND s.ns > 0
UNION ALL BY NAME
SELECT 'delayed beyond work' AS what, coalesce(sum(delayed_ns - beside_work_ns), 0)::BIGINT AS ns
FROM device_slice
WHERE getvariable('run_id') IN (run_id, rollout_run_id)
ORDER BY what, name;
