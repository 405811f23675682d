-- How far the time of device $device_id was accounted for in run $run_id, by what was recorded since $since_us (UTC
-- microseconds), in UTC nanoseconds; and whether it is there. Of the events themselves: an agent waits for the answer.
SELECT
    (
        SELECT max(CASE WHEN kind = 'device_slice' THEN t1_ns WHEN action = 'joined' THEN t_ns END) FROM event
        WHERE kind IN ('device_slice', 'device') AND run_id = $run_id AND device_id = $device_id AND at_us >= $since_us
    ) AS until_ns,
    (
        SELECT arg_max(action, (at_us, seq)) FROM event
        WHERE kind = 'device' AND run_id = $run_id AND device_id = $device_id
    ) AS last_action;
