-- Where the time of each device went, by UTC day, and whether it was lent: the sums of `device_slice`. A slice counts
-- on the day it begins on.
--
-- day: The UTC day the slices begin on.
-- rollout_run_id: The RL run whose rollout, sync, activation and headroom time it is; the run itself where no other is
--     named.
-- train_run_id: The RL run whose train time it is; the run itself where no other is named.
-- lent: Whether a lease was in force.
-- slices: Slices counted.
-- ns: Time accounted for, nanoseconds: the sum of the seven buckets.
CREATE OR REPLACE VIEW daily_device_time AS
SELECT
    day, run_id, provenance,
    coalesce(rollout_run_id, run_id) AS rollout_run_id, coalesce(train_run_id, run_id) AS train_run_id,
    device_id, lent,
    CAST(if(sum(slices) > 9223372036854775807, 9223372036854775807, sum(slices)) AS BIGINT) AS slices,
    CAST(if(sum(ns) > 9223372036854775807, 9223372036854775807, sum(ns)) AS BIGINT) AS ns,
    CAST(if(sum(serving_ns) > 9223372036854775807, 9223372036854775807, sum(serving_ns)) AS BIGINT) AS serving_ns,
    CAST(if(sum(rollout_ns) > 9223372036854775807, 9223372036854775807, sum(rollout_ns)) AS BIGINT) AS rollout_ns,
    CAST(if(sum(train_ns) > 9223372036854775807, 9223372036854775807, sum(train_ns)) AS BIGINT) AS train_ns,
    CAST(if(sum(sync_ns) > 9223372036854775807, 9223372036854775807, sum(sync_ns)) AS BIGINT) AS sync_ns,
    CAST(if(sum(activation_ns) > 9223372036854775807, 9223372036854775807, sum(activation_ns)) AS BIGINT)
        AS activation_ns,
    CAST(if(sum(headroom_ns) > 9223372036854775807, 9223372036854775807, sum(headroom_ns)) AS BIGINT) AS headroom_ns,
    CAST(if(sum(idle_ns) > 9223372036854775807, 9223372036854775807, sum(idle_ns)) AS BIGINT) AS idle_ns,
    CAST(if(sum(overlap_ns) > 9223372036854775807, 9223372036854775807, sum(overlap_ns)) AS BIGINT) AS overlap_ns
FROM (FROM rolled_daily_device_time UNION ALL BY NAME FROM unrolled_daily_device_time)
GROUP BY ALL;
