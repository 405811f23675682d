-- Use of each device's time by UTC day and by whether it was lent. It is the sum of `device_slice` and of slices that
-- are in `faulty_event` because their time was already accounted for. A slice counts on the day on which it begins.
--
-- day: The UTC day on which the slices begin.
-- rollout_run_id: The RL run that has the rollout, sync, activation and headroom time; `run_id` if none is named.
-- train_run_id: The RL run that has the train time; `run_id` if none is named.
-- lent: Whether a lease was in force.
-- slices: Number of slices.
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
