-- `time_totals` from the daily sums, for a run of many days.
-- Reads the macros that `own_device_time` makes.
-- By hand: SET VARIABLE run_id = '...';
WITH slice AS (FROM own_device_time('daily_device_time')),
used AS (
    SELECT
        run_id, device_id, any_value(device) AS device,
        sum(serving_ns) AS serving,
        sum(rollout_ns) AS rollout,
        sum(train_ns) AS train,
        sum(sync_ns) AS sync,
        sum(activation_ns) AS activation,
        sum(headroom_ns) AS headroom,
        sum(idle_ns) AS idle,
        sum(ns) AS ns
    FROM slice
    GROUP BY run_id, device_id
),
ended AS (SELECT max(ended_at) AS ended_at FROM run WHERE run_id = getvariable('run_id')),
there AS (
    SELECT
        device_id, coalesce(sum(left_ns - joined_ns), 0) AS over_ns,
        max(joined_ns) FILTER (left_ns IS NULL) AS joined_ns
    FROM tenure
    WHERE run_id = getvariable('run_id')
    GROUP BY device_id
),
known AS (
    SELECT
        d.device_id, d.pool, d.device_class, used.* EXCLUDE (run_id, device_id, device, ns),
        -- While it is there until the end of its slices, which leave no gap, or of a run that is over. greatest()
        -- passes over NULL.
        there.over_ns + CASE WHEN there.joined_ns IS NULL THEN 0 ELSE
            greatest(0, used.ns - there.over_ns, 1000 * epoch_us(ended.ended_at) - there.joined_ns) END AS provisioned
    FROM device AS d
    CROSS JOIN ended
    LEFT JOIN there USING (device_id)
    LEFT JOIN used USING (run_id, device_id)
    WHERE d.run_id = getvariable('run_id')
    UNION ALL BY NAME
    SELECT
        device AS device_id,
        d.pool, d.device_class, used.* EXCLUDE (run_id, device_id, device, ns),
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
