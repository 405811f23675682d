-- Device time by bucket, summed between price changes. A slice that straddles a change comes back by itself (its t0_ns
-- and t1_ns set), since only the reader of the price book can divide it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[];
WITH slice AS (
    SELECT
        s.*, d.joined_ns,
        list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= s.t0_ns) AS before,
        list_filter(getvariable('price_changes')::BIGINT[], lambda c: c < s.t1_ns) AS started
    FROM device_slice AS s
    JOIN device AS d
        ON d.run_id = s.run_id AND d.device_id = s.device_id
       AND d.joined_ns <= s.t0_ns AND s.t1_ns <= coalesce(d.left_ns, s.t1_ns)
    WHERE s.run_id = getvariable('run_id') AND s.t1_ns > s.t0_ns
)
SELECT
    device_id, joined_ns, len(before) AS segment,
    CASE WHEN len(started) > len(before) THEN t0_ns END AS t0_ns,
    CASE WHEN len(started) > len(before) THEN t1_ns END AS t1_ns,
    sum(serving_ns) AS serving_ns,
    sum(rollout_ns) AS rollout_ns,
    sum(train_ns) AS train_ns,
    sum(sync_ns) AS sync_ns,
    sum(activation_ns) AS activation_ns,
    sum(headroom_ns) AS headroom_ns,
    sum(idle_ns) AS idle_ns
FROM slice
GROUP BY ALL
ORDER BY ALL;
