-- Where the time of each device went, by UTC day, and whether it was lent: the sums of `device_slice`. A slice counts on
-- the day it begins on.
--
-- day: The UTC day the slices begin on.
-- lent: Whether a lease was in force.
-- slices: Slices counted.
-- ns: Time accounted for, nanoseconds: the sum of the seven buckets.
CREATE OR REPLACE VIEW daily_device_time AS
SELECT
    day, run_id, provenance, device_id, lent,
    CAST(sum(slices) AS BIGINT) AS slices,
    CAST(sum(ns) AS BIGINT) AS ns,
    CAST(sum(serving_ns) AS BIGINT) AS serving_ns,
    CAST(sum(rollout_ns) AS BIGINT) AS rollout_ns,
    CAST(sum(train_ns) AS BIGINT) AS train_ns,
    CAST(sum(sync_ns) AS BIGINT) AS sync_ns,
    CAST(sum(activation_ns) AS BIGINT) AS activation_ns,
    CAST(sum(headroom_ns) AS BIGINT) AS headroom_ns,
    CAST(sum(idle_ns) AS BIGINT) AS idle_ns,
    CAST(sum(overlap_ns) AS BIGINT) AS overlap_ns
FROM (FROM rolled_daily_device_time UNION ALL BY NAME FROM unrolled_daily_device_time)
GROUP BY ALL;
