-- Device time by bucket over time, in at most 200 bins of a second or more. A lane is a device, or a pool where there
-- are more than six devices. A slice counts in the bin it begins in, so the bins sum to the slices exactly;
-- [t0, t1) is what the slices of a bin really cover.
-- An RL run that shares a fleet has its own time alone.
-- By hand: SET VARIABLE run_id = '...';
WITH slice AS (
    SELECT
        s.* REPLACE (
            CASE WHEN s.run_id = getvariable('run_id') THEN serving_ns ELSE 0 END AS serving_ns,
            CASE WHEN s.run_id = getvariable('run_id') THEN idle_ns ELSE 0 END AS idle_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN rollout_ns ELSE 0 END AS rollout_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN sync_ns ELSE 0 END AS sync_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN activation_ns ELSE 0 END AS activation_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN headroom_ns ELSE 0 END AS headroom_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, train_run_id) THEN train_ns ELSE 0 END AS train_ns
        ),
        d.pool
    FROM device_slice AS s
    LEFT JOIN device AS d USING (run_id, device_id)
    WHERE s.run_id = (SELECT any_value(fleet_run_id) FROM run WHERE run.run_id = getvariable('run_id'))
      AND getvariable('run_id') IN (s.run_id, s.rollout_run_id, s.train_run_id)
),
span AS (
    SELECT
        min(t0_ns) AS from_ns,
        greatest(1000000000, (max(t1_ns) - min(t0_ns)) // 200 + 1) AS bin_ns,
        count(DISTINCT device_id) <= 6 AS few
    FROM slice
),
binned AS (
    SELECT
        CASE WHEN few THEN device_id || ' (' || coalesce(pool, 'unknown') || ')'
             ELSE 'all of pool ' || coalesce(pool, 'unknown') END AS lane,
        (t0_ns - from_ns) // bin_ns AS bin,
        min(t0) AS t0,
        max(t1) AS t1,
        CAST(sum(serving_ns) AS BIGINT) AS serving,
        CAST(sum(rollout_ns) AS BIGINT) AS rollout,
        CAST(sum(train_ns) AS BIGINT) AS train,
        CAST(sum(sync_ns) AS BIGINT) AS sync,
        CAST(sum(activation_ns) AS BIGINT) AS activation,
        CAST(sum(headroom_ns) AS BIGINT) AS headroom,
        CAST(sum(idle_ns) AS BIGINT) AS idle
    FROM slice, span
    GROUP BY ALL
),
bucketed AS (
    UNPIVOT binned ON serving, rollout, train, sync, activation, headroom, idle INTO NAME bucket VALUE ns
)
SELECT lane, bin, t0, t1, bucket, ns, ns / nullif(sum(ns) OVER (PARTITION BY lane, bin), 0) AS share
FROM bucketed
ORDER BY lane, bin, bucket;
