-- `fleet_states` from the daily sums, for a time of many days: a bin is a UTC day, or several where there are more than
-- `blocks`.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
WITH fleets AS (
    SELECT
        list(DISTINCT coalesce(fleet_run_id, run_id)) AS run_ids,
        list_min(run_ids) AS first, list_max(run_ids) AS last
    FROM event
    WHERE kind = 'run' AND run_id = getvariable('run_id')
),
spent AS (
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
    FROM daily_device_time AS s
    LEFT JOIN device AS d USING (run_id, device_id)
    -- By the statistics of files, those of other runs are not read.
    WHERE s.run_id BETWEEN (SELECT first FROM fleets) AND (SELECT last FROM fleets)
      AND list_contains((SELECT run_ids FROM fleets), s.run_id)
      AND getvariable('run_id') IN (s.run_id, s.rollout_run_id, s.train_run_id)
      AND day >= CAST(make_timestamp(getvariable('from_ns') // 1000) AS DATE)
      AND day <= CAST(make_timestamp((getvariable('to_ns') - 1) // 1000) AS DATE)
),
span AS (
    SELECT
        min(day) AS first, (max(day) - min(day)) // getvariable('blocks') + 1 AS days,
        count(DISTINCT device_id) AS devices
    FROM spent
)
SELECT
    CASE WHEN devices <= 40 THEN device_id ELSE 'all of pool ' || coalesce(pool, 'unknown') END AS lane,
    coalesce(pool, 'unknown') AS pool,
    devices <= 40 AS each_device,
    (day - first) // days AS bin,
    CAST(min(day) AS TIMESTAMP) AS t0,
    CAST(max(day) + 1 AS TIMESTAMP) AS t1,
    CAST(sum(serving_ns) AS BIGINT) AS serving,
    CAST(sum(rollout_ns) AS BIGINT) AS rollout,
    CAST(sum(train_ns) AS BIGINT) AS train,
    CAST(sum(sync_ns) AS BIGINT) AS sync,
    CAST(sum(activation_ns) AS BIGINT) AS activation,
    CAST(sum(headroom_ns) AS BIGINT) AS headroom,
    CAST(sum(idle_ns) AS BIGINT) AS idle,
    CAST(coalesce(sum(ns) FILTER (lent), 0) AS BIGINT) AS lent
FROM spent, span
GROUP BY ALL
ORDER BY pool, lane, bin;
