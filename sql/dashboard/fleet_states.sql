-- Device time by bucket in [from_ns, to_ns), in at most `blocks` bins of a second or more. A lane is a device, or a
-- pool where there are more than 40 devices. A slice counts in the bin it begins in, so the bins sum to the slices
-- exactly; [t0, t1) is what the slices of a bin really cover, `lent` the time of them under a lease.
-- An RL run that shares a fleet has its own time alone; of one that was on several, a device is named after its fleet.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
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
            CASE WHEN (SELECT first < last FROM fleets) THEN s.run_id || '/' || device_id ELSE device_id END
                AS device_id,
            CASE WHEN s.run_id = getvariable('run_id') THEN serving_ns ELSE 0 END AS serving_ns,
            CASE WHEN s.run_id = getvariable('run_id') THEN idle_ns ELSE 0 END AS idle_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN rollout_ns ELSE 0 END AS rollout_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN sync_ns ELSE 0 END AS sync_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN activation_ns ELSE 0 END
                AS activation_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN headroom_ns ELSE 0 END AS headroom_ns,
            CASE WHEN getvariable('run_id') IN (s.run_id, train_run_id) THEN train_ns ELSE 0 END AS train_ns
        ),
        d.pool
    FROM device_slice AS s
    LEFT JOIN device AS d USING (run_id, device_id)
    -- By the statistics of files, those of other runs are not read.
    WHERE s.run_id BETWEEN (SELECT first FROM fleets) AND (SELECT last FROM fleets)
      AND list_contains((SELECT run_ids FROM fleets), s.run_id)
      AND getvariable('run_id') IN (s.run_id, s.rollout_run_id, s.train_run_id)
      AND t0_ns >= getvariable('from_ns') AND t0_ns < getvariable('to_ns')
),
span AS (
    SELECT
        greatest(1000000000, (getvariable('to_ns') - getvariable('from_ns')) // getvariable('blocks') + 1) AS bin_ns,
        (SELECT count(DISTINCT device_id) FROM slice) AS devices
)
SELECT
    CASE WHEN devices <= 40 THEN device_id ELSE 'all of pool ' || coalesce(pool, 'unknown') END AS lane,
    coalesce(pool, 'unknown') AS pool,
    devices <= 40 AS each_device,
    (t0_ns - getvariable('from_ns')) // bin_ns AS bin,
    min(t0) AS t0,
    max(t1) AS t1,
    CAST(sum(serving_ns) AS BIGINT) AS serving,
    CAST(sum(rollout_ns) AS BIGINT) AS rollout,
    CAST(sum(train_ns) AS BIGINT) AS train,
    CAST(sum(sync_ns) AS BIGINT) AS sync,
    CAST(sum(activation_ns) AS BIGINT) AS activation,
    CAST(sum(headroom_ns) AS BIGINT) AS headroom,
    CAST(sum(idle_ns) AS BIGINT) AS idle,
    CAST(coalesce(sum(ns) FILTER (lease_id IS NOT NULL), 0) AS BIGINT) AS lent
FROM slice, span
GROUP BY ALL
ORDER BY pool, lane, bin;
