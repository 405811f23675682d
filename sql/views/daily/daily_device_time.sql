-- Use of each device's time by UTC day, and whether it was lent: the sums of `device_slice` and of slices that
-- `faulty_event` names since their time was accounted for already. A slice counts on the day it begins on.
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
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS('(slices|ns)$')) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS('(slices|ns)$'))
    ) AS BIGINT)
FROM (FROM rolled_daily_device_time UNION ALL BY NAME FROM unrolled_daily_device_time)
GROUP BY ALL;
