-- The new slices, where they begin and end, and the units of which a slice overlaps another.
CREATE OR REPLACE TEMP TABLE new_slice AS
SELECT
    unit, lease_id, nullif(rollout_run_id, run_id) AS rollout_run_id, nullif(train_run_id, run_id) AS train_run_id,
    writer, seq, t0_ns, t1_ns, serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns
FROM of_unit
WHERE kind = 'device_slice' AND t1_ns > t0_ns
  AND reckonable('device_slice');
CREATE OR REPLACE TEMP VIEW slice_edge AS
SELECT unit, t_ns, sum(delta)::BIGINT AS delta
FROM (SELECT unit, unnest([t0_ns, t1_ns]) AS t_ns, unnest([1, -1]) AS delta FROM new_slice)
GROUP BY ALL
HAVING sum(delta) <> 0;
CREATE OR REPLACE TEMP TABLE new_edge AS FROM slice_edge;
CREATE OR REPLACE TEMP TABLE overlapped AS
WITH added AS (
    SELECT unit, t_ns, sum(delta) AS delta
    FROM (
        FROM new_edge
        UNION ALL
        SELECT unit, t_ns, delta FROM edge SEMI JOIN new_slice USING (unit) WHERE kind = 'device_slice'
    )
    GROUP BY ALL
)
SELECT DISTINCT unit FROM (FROM added QUALIFY sum(delta) OVER (PARTITION BY unit ORDER BY t_ns) > 1)
UNION
SELECT n.unit
FROM new_slice AS n
JOIN doubled AS d ON n.unit = d.unit AND n.t0_ns < d.t1_ns AND d.t0_ns < n.t1_ns;
