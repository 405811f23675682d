-- `fleet_states` from the daily sums, for a time of many days: a bin is a UTC day, or several where there are more than
-- `blocks`.
-- Reads the macros that `own_device_time` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
WITH spent AS (
    SELECT
        s.* REPLACE (device AS device_id),
        d.pool
    FROM own_device_time('daily_device_time') AS s
    LEFT JOIN device AS d USING (run_id, device_id)
    WHERE day >= CAST(make_timestamp(getvariable('from_ns') // 1000) AS DATE)
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
