-- How far the time of device $device_id was accounted for in run $run_id, UTC nanoseconds, and whether it is there.
SELECT
    greatest(
        (SELECT max(t1_ns) FROM device_slice WHERE run_id = $run_id AND device_id = $device_id),
        (
            SELECT max(t_ns) FROM event
            WHERE kind = 'device' AND run_id = $run_id AND device_id = $device_id AND action = 'joined'
        )
    ) AS until_ns,
    (
        SELECT arg_max(action, (at_us, seq)) FROM event
        WHERE kind = 'device' AND run_id = $run_id AND device_id = $device_id
    ) AS last_action;
