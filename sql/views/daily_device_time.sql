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
    CAST(least(sum(slices), 9223372036854775807) AS BIGINT) AS slices,
    CAST(least(sum(ns), 9223372036854775807) AS BIGINT) AS ns,
    CAST(least(sum(serving_ns), 9223372036854775807) AS BIGINT) AS serving_ns,
    CAST(least(sum(rollout_ns), 9223372036854775807) AS BIGINT) AS rollout_ns,
    CAST(least(sum(train_ns), 9223372036854775807) AS BIGINT) AS train_ns,
    CAST(least(sum(sync_ns), 9223372036854775807) AS BIGINT) AS sync_ns,
    CAST(least(sum(activation_ns), 9223372036854775807) AS BIGINT) AS activation_ns,
    CAST(least(sum(headroom_ns), 9223372036854775807) AS BIGINT) AS headroom_ns,
    CAST(least(sum(idle_ns), 9223372036854775807) AS BIGINT) AS idle_ns,
    CAST(least(sum(overlap_ns), 9223372036854775807) AS BIGINT) AS overlap_ns
FROM (FROM rolled_daily_device_time UNION ALL BY NAME FROM unrolled_daily_device_time)
GROUP BY ALL;
