-- The devices of a fleet, and what each did last since from_ns: its newest slice, when it ended, and whether the device
-- was lent then. `state` is the bucket that took the most of the slice, NULL for a device without a slice.
-- `beside_share` is what rollouts had of it beside live requests, `slowed_share` how much longer serving took for that.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0;
WITH newest AS (
    SELECT device_id, arg_max(
        {'t1': t1, 'lease_id': lease_id, 'serving': serving_ns, 'rollout': rollout_ns, 'train': train_ns,
         'sync': sync_ns, 'activation': activation_ns, 'headroom': headroom_ns, 'idle': idle_ns,
         'beside': beside_work_ns, 'delayed': delayed_ns, 'ns': ns}, t1_ns) AS last
    FROM device_slice
    WHERE run_id = getvariable('run_id') AND t0_ns >= getvariable('from_ns')
    GROUP BY device_id
)
SELECT
    device_id, pool, device_class, left_ns IS NOT NULL AS has_left,
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
    END AS state,
    last.beside / nullif(last.ns, 0) AS beside_share,
    last.delayed / nullif(last.serving + last.beside - last.delayed, 0) AS slowed_share
FROM device
LEFT JOIN newest USING (device_id)
WHERE run_id = getvariable('run_id')
ORDER BY pool, device_id;
