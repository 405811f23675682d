-- Device time by UTC day and bucket, with the class each device is priced by; NULL for a device that never joined.
SELECT
    t.day, t.run_id, t.provenance, t.device_id, any_value(d.device_class) AS device_class,
    sum(t.serving_ns) AS serving_ns,
    sum(t.rollout_ns) AS rollout_ns,
    sum(t.train_ns) AS train_ns,
    sum(t.sync_ns) AS sync_ns,
    sum(t.activation_ns) AS activation_ns,
    sum(t.headroom_ns) AS headroom_ns,
    sum(t.idle_ns) AS idle_ns
FROM daily_device_time AS t
LEFT JOIN device AS d
    ON d.run_id = t.run_id AND d.provenance = t.provenance AND d.device_id = t.device_id
GROUP BY t.day, t.run_id, t.provenance, t.device_id
HAVING sum(t.ns) > 0
ORDER BY t.day, t.run_id, t.provenance, t.device_id;
