-- `time_totals` from the daily sums, for a run of many days.
-- By hand: SET VARIABLE run_id = '...';
WITH fleets AS (
    SELECT
        list(DISTINCT coalesce(fleet_run_id, run_id)) AS run_ids,
        list_min(run_ids) AS first, list_max(run_ids) AS last
    FROM event
    WHERE kind = 'run' AND run_id = getvariable('run_id')
),
slice AS (
    SELECT
        s.* REPLACE (
            CASE WHEN s.run_id = getvariable('run_id') THEN serving_ns ELSE 0 END AS serving_ns,
            CASE WHEN s.run_id = getvariable('run_id') THEN idle_ns ELSE 0 END AS idle_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN rollout_ns ELSE 0 END AS rollout_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN sync_ns ELSE 0 END AS sync_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN activation_ns ELSE 0 END
                AS activation_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN headroom_ns ELSE 0 END AS headroom_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, train_run_id) THEN train_ns ELSE 0 END AS train_ns
        )
    FROM daily_device_time AS s
    -- By the statistics of files, those of other runs are not read.
    WHERE s.run_id BETWEEN (SELECT first FROM fleets) AND (SELECT last FROM fleets)
      AND list_contains((SELECT run_ids FROM fleets), s.run_id)
      AND getvariable('run_id') IN (s.run_id, s.rollout_run_id, s.train_run_id)
),
used AS (
    SELECT
        run_id, device_id,
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
        d.device_id, d.pool, d.device_class, used.* EXCLUDE (run_id, device_id, ns),
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
        CASE WHEN (SELECT first < last FROM fleets) THEN run_id || '/' || device_id ELSE device_id END AS device_id,
        d.pool, d.device_class, used.* EXCLUDE (run_id, device_id, ns),
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
