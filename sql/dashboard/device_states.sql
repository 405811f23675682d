-- Device time of a fleet by bucket in [from_ns, to_ns), in at most `blocks` bins of a second or more. A lane is a
-- device, or a pool where there are more than 40 devices. A slice counts in the bin it begins in, so the bins sum to
-- the slices exactly; [t0, t1) is what the slices of a bin really cover, `lent` the time of them under a lease.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
WITH slice AS (
    SELECT s.*, coalesce(d.pool, 'unknown') AS pool
    FROM device_slice AS s
    LEFT JOIN device AS d USING (run_id, device_id)
    WHERE run_id = getvariable('run_id') AND t0_ns >= getvariable('from_ns') AND t0_ns < getvariable('to_ns')
),
span AS (
    SELECT
        greatest(1000000000, (getvariable('to_ns') - getvariable('from_ns')) // getvariable('blocks') + 1) AS bin_ns,
        (SELECT count(DISTINCT device_id) FROM slice) AS devices
)
SELECT
    CASE WHEN devices <= 40 THEN device_id ELSE 'all of pool ' || pool END AS lane,
    pool,
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
