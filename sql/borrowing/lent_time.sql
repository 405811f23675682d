-- Work of serving devices, summed between price changes. `base_ns` is time the device would have worked anyway:
-- serving without its delay beside rollouts, and the start of its engine. `busy_ns` is all time it worked, also for
-- rollouts, their syncs and activations. Activation in a slice is divided between the engines that were starting or
-- moving meanwhile, by how long each was; `unexplained_ns` is that in which no event names an engine, and counts as
-- the rollout engine's. A slice that straddles a price change comes back by itself, its t0_ns and t1_ns set.
-- `overlap_ns` is time in which serving and rollouts worked at once, `delayed_ns` how much longer serving's steps took
-- beside rollouts on credit: 0 in ledgers from before there was credit. A delay that a slice tells after its lease
-- ended counts for the run that the device is assigned to. Reads the table `own_time`, which `time_on_fleet` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE price_changes = []::BIGINT[];
WITH start AS (
    SELECT device_id, role, epoch_ns(event_time) - duration_ns AS from_ns, epoch_ns(event_time) AS to_ns
    FROM engine
    WHERE run_id = getvariable('run_id') AND action IN ('started', 'activated', 'deactivated')
      AND duration_ns IS NOT NULL
      AND (NOT EXISTS (FROM own_time) OR EXISTS (
          FROM own_time AS o
          WHERE o.run_id = fleet_run_id AND o.device_id = engine.device_id
            AND o.from_ns < epoch_ns(event_time) AND epoch_ns(event_time) - duration_ns < o.to_ns
      ))
),
activating AS (
    SELECT
        s.writer, s.seq, s.activation_ns,
        coalesce(sum(least(e.to_ns, s.t1_ns) - greatest(e.from_ns, s.t0_ns)) FILTER (e.role = 'serving'), 0) AS serving,
        -- `least` and `greatest` pass over NULL.
        coalesce(sum(least(e.to_ns, s.t1_ns) - greatest(e.from_ns, s.t0_ns)) FILTER (e.role IS NOT NULL), 0) AS named
    FROM device_slice AS s
    LEFT JOIN start AS e ON e.device_id = s.device_id AND e.from_ns < s.t1_ns AND s.t0_ns < e.to_ns
    WHERE s.run_id = getvariable('run_id') AND s.activation_ns > 0
    GROUP BY ALL
),
owed AS (
    SELECT
        writer, seq,
        CASE WHEN named > 0 THEN (activation_ns * serving // named)::BIGINT ELSE 0 END AS serving_start_ns,
        CASE WHEN named = 0 THEN activation_ns ELSE 0 END AS unexplained_ns
    FROM activating
),
slice AS (
    SELECT
        d.device_class, s.t0_ns, s.t1_ns, s.ns, s.rollout_ns, s.overlap_ns, s.delayed_ns,
        greatest(0, s.serving_ns - coalesce(s.delayed_ns - s.beside_work_ns, 0))
            + s.train_ns + coalesce(o.serving_start_ns, 0) AS base_ns,
        coalesce(o.unexplained_ns, 0) AS unexplained_ns,
        s.serving_ns + s.train_ns + s.rollout_ns + s.sync_ns + s.activation_ns AS busy_ns,
        list_filter(getvariable('price_changes')::BIGINT[], lambda c: c <= s.t0_ns) AS before,
        list_filter(getvariable('price_changes')::BIGINT[], lambda c: c < s.t1_ns) AS started
    FROM device_slice AS s
    JOIN tenure AS d
        ON d.run_id = s.run_id AND d.device_id = s.device_id
       AND d.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(d.left_ns, s.t1_ns)
    LEFT JOIN owed AS o ON o.writer = s.writer AND o.seq = s.seq
    WHERE s.run_id = getvariable('run_id') AND d.pool = 'serving' AND s.ns > 0
      AND (s.lease_id IS NOT NULL OR s.rollout_ns + s.sync_ns + s.activation_ns > 0
          OR s.delayed_ns > 0 AND (NOT EXISTS (FROM own_time) OR s.rollout_run_id = s.run_id))
)
SELECT
    device_class,
    len(before) AS segment,
    CASE WHEN len(started) > len(before) THEN t0_ns END AS t0_ns,
    CASE WHEN len(started) > len(before) THEN t1_ns END AS t1_ns,
    CAST(sum(rollout_ns) AS BIGINT) AS rollout_ns,
    CAST(sum(base_ns) AS BIGINT) AS base_ns,
    CAST(sum(busy_ns) AS BIGINT) AS busy_ns,
    CAST(sum(unexplained_ns) AS BIGINT) AS unexplained_ns,
    CAST(sum(coalesce(overlap_ns, 0)) AS BIGINT) AS overlap_ns,
    CAST(sum(coalesce(delayed_ns, 0)) AS BIGINT) AS delayed_ns
FROM slice
GROUP BY ALL
ORDER BY ALL;
