-- What serving devices did, summed between price changes and, within each, between the loads at which an assumed power
-- curve bends (`load_points`); by lease if `by_lease`. `base_ns` is time the device would have worked anyway, `busy_ns`
-- that and what rollouts, their syncs and activations took; `base_piece` and `busy_piece` count the bends at or below
-- the share of each. A slice that straddles a price change comes back by itself, its t0_ns and t1_ns set.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[];
-- SET VARIABLE load_points = []::DOUBLE[]; SET VARIABLE by_lease = true;
WITH slice AS (
    SELECT
        s.lease_id, d.device_class, s.t0_ns, s.t1_ns, s.ns, s.rollout_ns,
        s.serving_ns + s.train_ns AS base_ns,
        s.serving_ns + s.train_ns + s.rollout_ns + s.sync_ns + s.activation_ns AS busy_ns,
        list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= s.t0_ns) AS before,
        list_filter(getvariable('price_changes')::BIGINT[], lambda c: c < s.t1_ns) AS started
    FROM device_slice AS s
    JOIN device AS d
        ON d.run_id = s.run_id AND d.device_id = s.device_id
       AND d.joined_ns <= s.t0_ns AND s.t1_ns <= coalesce(d.left_ns, s.t1_ns)
    WHERE s.run_id = getvariable('run_id') AND d.pool = 'serving' AND s.ns > 0
      AND (s.lease_id IS NOT NULL OR s.rollout_ns + s.sync_ns + s.activation_ns > 0)
)
SELECT
    CASE WHEN getvariable('by_lease') THEN lease_id END AS lease_id,
    device_class,
    len(before) AS segment,
    CASE WHEN len(started) > len(before) THEN t0_ns END AS t0_ns,
    CASE WHEN len(started) > len(before) THEN t1_ns END AS t1_ns,
    len(list_filter(getvariable('load_points')::DOUBLE[], lambda p: p <= base_ns / ns)) AS base_piece,
    len(list_filter(getvariable('load_points')::DOUBLE[], lambda p: p <= busy_ns / ns)) AS busy_piece,
    CAST(sum(ns) AS BIGINT) AS ns,
    CAST(sum(rollout_ns) AS BIGINT) AS rollout_ns,
    CAST(sum(base_ns) AS BIGINT) AS base_ns,
    CAST(sum(busy_ns) AS BIGINT) AS busy_ns
FROM slice
GROUP BY ALL
ORDER BY ALL;
