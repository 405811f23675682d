-- Seconds of each device by bucket.
WITH total AS (
    SELECT
        provenance, device_id,
        sum(serving_ns) AS serving, sum(rollout_ns) AS rollout, sum(train_ns) AS train, sum(sync_ns) AS sync,
        sum(activation_ns) AS activation, sum(headroom_ns) AS headroom, sum(idle_ns) AS idle
    FROM daily_device_time
    GROUP BY ALL
)
SELECT provenance, device_id, bucket, ns / 1e9 AS seconds
FROM total
UNPIVOT (ns FOR bucket IN (serving, rollout, train, sync, activation, headroom, idle))
ORDER BY ALL;
