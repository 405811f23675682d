-- Add the new slices and power readings to what is kept, but those that cross the end of an hour.
-- Hours in which earlier slices of the devices with new slices ended: their provisioned time grows.
CREATE OR REPLACE TEMP TABLE touched AS
SELECT unit, (max(t_ns) - 1) // 3600000000000 AS hour
FROM (FROM edge WHERE kind = 'device_slice')
SEMI JOIN new_slice USING (unit)
GROUP BY unit;
INSERT INTO slice
SELECT
    unit, t0_ns // 3600000000000 AS hour, lease_id, NULL AS rl_run_id, writer, min(seq), max(seq),
    sum(serving_ns), sum(rollout_ns), sum(train_ns), sum(sync_ns), sum(activation_ns), sum(headroom_ns), sum(idle_ns)
FROM new_slice
WHERE t0_ns // 3600000000000 = (t1_ns - 1) // 3600000000000 AND rollout_run_id IS NULL AND train_run_id IS NULL
GROUP BY unit, hour, lease_id, writer;
-- Time of RL runs that share the device belongs to them; the rest of the slice belongs to the unit's own run.
INSERT INTO slice
WITH shared AS (
    FROM new_slice
    WHERE t0_ns // 3600000000000 = (t1_ns - 1) // 3600000000000
      AND (rollout_run_id IS NOT NULL OR train_run_id IS NOT NULL)
),
owned AS (
    SELECT
        * REPLACE (
            CASE WHEN rollout_run_id IS NULL THEN rollout_ns ELSE 0 END AS rollout_ns,
            CASE WHEN rollout_run_id IS NULL THEN sync_ns ELSE 0 END AS sync_ns,
            CASE WHEN rollout_run_id IS NULL THEN activation_ns ELSE 0 END AS activation_ns,
            CASE WHEN rollout_run_id IS NULL THEN headroom_ns ELSE 0 END AS headroom_ns,
            CASE WHEN train_run_id IS NULL THEN train_ns ELSE 0 END AS train_ns
        ),
        NULL AS rl_run_id
    FROM shared
    UNION ALL
    SELECT * REPLACE (0 AS serving_ns, 0 AS train_ns, 0 AS idle_ns), rollout_run_id
    FROM shared
    WHERE rollout_run_id IS NOT NULL
    UNION ALL
    SELECT
        * REPLACE (
            0 AS serving_ns, 0 AS rollout_ns, 0 AS sync_ns, 0 AS activation_ns, 0 AS headroom_ns, 0 AS idle_ns
        ),
        train_run_id
    FROM shared
    WHERE train_run_id IS NOT NULL
)
SELECT
    unit, t0_ns // 3600000000000 AS hour, lease_id, rl_run_id, writer, min(seq), max(seq),
    sum(serving_ns), sum(rollout_ns), sum(train_ns), sum(sync_ns), sum(activation_ns), sum(headroom_ns), sum(idle_ns)
FROM owned
WHERE serving_ns + rollout_ns + train_ns + sync_ns + activation_ns + headroom_ns + idle_ns > 0
GROUP BY unit, hour, lease_id, rl_run_id, writer;
INSERT INTO metered
SELECT
    unit, t0_ns // 3600000000000 AS hour, writer, min(seq), max(seq), sum(t1_ns - t0_ns),
    sum(power_mw::HUGEINT * (t1_ns - t0_ns))
FROM new_other
WHERE kind = 'power' AND t0_ns // 3600000000000 = (t1_ns - 1) // 3600000000000
GROUP BY unit, hour, writer;
INSERT INTO edge FROM new_edge;
