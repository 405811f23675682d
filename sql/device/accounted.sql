-- How far the time of device $device_id is in slices of run $run_id, up to when something of the device is known, both
-- in UTC nanoseconds, and which run trained on it by the last slice, empty for none: all by what happened at $since_us
-- (UTC microseconds) or later. Of the events themselves: an agent waits for the answer.
SELECT
    max(t1_ns) AS until_ns,
    greatest(max(t1_ns), 1000 * max(at_us) FILTER (kind = 'lease')) AS newest_ns,
    arg_max(coalesce(train_run_id, ''), t1_ns) AS train_run_id
FROM event
WHERE kind IN ('device_slice', 'lease') AND run_id = $run_id AND device_id = $device_id AND at_us >= $since_us;
