-- What each device of the fleet did last since from_ns: its newest slice, when it ended, and whether it was lent then.
-- `state` is the bucket that took the most of it. A device that has left is not there any more. Of an RL run that was
-- on several fleets it is the devices of all, each after its fleet.
-- Reads the macros that `own_device_time` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0;
WITH newest AS (
    SELECT run_id, device_id, arg_max(
        {'t1': t1, 'lease_id': lease_id, 'serving': serving_ns, 'rollout': rollout_ns, 'train': train_ns,
         'sync': sync_ns, 'activation': activation_ns, 'headroom': headroom_ns, 'idle': idle_ns}, t1_ns) AS last
    FROM of_fleets('device_slice')
    WHERE t0_ns >= getvariable('from_ns')
    GROUP BY run_id, device_id
)
SELECT
    CASE WHEN (SELECT several FROM fleets_of_run()) THEN run_id || '/' || device_id ELSE device_id END AS device_id,
    d.pool, d.device_class, d.left_ns IS NOT NULL AS has_left,
    last.t1 AS seen_at,
    last.lease_id IS NOT NULL AS lent,
    CASE greatest(last.serving, last.rollout, last.train, last.sync, last.activation, last.headroom, last.idle)
        WHEN last.serving THEN 'serving'
        WHEN last.rollout THEN 'rollout'
        WHEN last.train THEN 'train'
        WHEN last.sync THEN 'sync'
        WHEN last.activation THEN 'activation'
        WHEN last.headroom THEN 'headroom'
        WHEN last.idle THEN 'idle'
    END AS state
FROM of_fleets('device') AS d
LEFT JOIN newest USING (run_id, device_id)
ORDER BY pool, device_id;
