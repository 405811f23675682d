-- Device time by device and bucket, in nanoseconds, against the time the device was provisioned: each time from when it
-- joined until it left, or until its last slice (at least until the end of a run that is over) if it has not.
-- An RL run that shares a fleet has its own time alone, of the devices it had some of; of one that was on several, a
-- device is named after its fleet.
-- Reads the macros that `own_device_time` makes.
-- By hand: SET VARIABLE run_id = '...';
WITH slice AS (FROM own_device_time('device_slice')),
used AS (
    SELECT
        run_id, device_id, any_value(device) AS device,
        max(t1_ns) AS t1_ns,
        sum(serving_ns) AS serving,
        sum(rollout_ns) AS rollout,
        sum(train_ns) AS train,
        sum(sync_ns) AS sync,
        sum(activation_ns) AS activation,
        sum(headroom_ns) AS headroom,
        sum(idle_ns) AS idle
    FROM slice
    GROUP BY run_id, device_id
),
ended AS (SELECT max(ended_at) AS ended_at FROM run WHERE run_id = getvariable('run_id')),
there AS (
    SELECT
        device_id,
        -- greatest() passes over NULL.
        sum(
            greatest(t.joined_ns, coalesce(t.left_ns, greatest(used.t1_ns, 1000 * epoch_us(ended.ended_at))))
            - t.joined_ns
        ) AS provisioned
    FROM tenure AS t
    CROSS JOIN ended
    LEFT JOIN used USING (run_id, device_id)
    WHERE t.run_id = getvariable('run_id')
    GROUP BY device_id
),
known AS (
    SELECT d.device_id, d.pool, d.device_class, used.* EXCLUDE (run_id, device_id, device, t1_ns), there.provisioned
    FROM device AS d
    LEFT JOIN there USING (device_id)
    LEFT JOIN used USING (run_id, device_id)
    WHERE d.run_id = getvariable('run_id')
    UNION ALL BY NAME
    SELECT
        device AS device_id,
        d.pool, d.device_class, used.* EXCLUDE (run_id, device_id, device, t1_ns),
        serving + rollout + train + sync + activation + headroom + idle AS provisioned
    FROM device AS d
    JOIN used USING (run_id, device_id)
    WHERE d.run_id <> getvariable('run_id')
)
SELECT
    device_id, pool, device_class,
    CAST(provisioned AS BIGINT) AS provisioned,
    CAST(coalesce(COLUMNS(* EXCLUDE (device_id, pool, device_class, provisioned)), 0) AS BIGINT)
FROM known
ORDER BY device_id;
