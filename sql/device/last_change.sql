-- When device $device_id last joined or left run $run_id, UTC nanoseconds, and which of the two it was; both NULL for
-- one that was never there. In the order that `tenure` has. Of the events themselves: an agent waits for the answer.
SELECT max(t_ns) AS t_ns, arg_max(action, (t_ns, seq)) AS action
FROM event
WHERE kind = 'device' AND run_id = $run_id AND device_id = $device_id;
