-- The new slices, and where they and power readings begin and end. `disputed` has devices of which a slice or reading
-- may have to be left out: it overlaps another one, or the device was not there.
CREATE OR REPLACE TEMP TABLE new_slice AS
SELECT
    unit, lease_id, nullif(rollout_run_id, run_id) AS rollout_run_id, nullif(train_run_id, run_id) AS train_run_id,
    writer, seq, t0_ns, t1_ns, serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns
FROM of_unit
WHERE kind = 'device_slice' AND t1_ns > t0_ns
  AND reckonable('device_slice');
CREATE OR REPLACE TEMP VIEW new_time AS
SELECT 'device_slice' AS kind, unit, t0_ns, t1_ns, writer, seq FROM new_slice
UNION ALL
SELECT kind, unit, t0_ns, t1_ns, writer, seq FROM new_other WHERE kind = 'power';
CREATE OR REPLACE TEMP VIEW time_edge AS
SELECT kind, unit, t_ns, sum(delta)::BIGINT AS delta
FROM (SELECT kind, unit, unnest([t0_ns, t1_ns]) AS t_ns, unnest([1, -1]) AS delta FROM new_time)
GROUP BY ALL
HAVING sum(delta) <> 0;
CREATE OR REPLACE TEMP TABLE new_edge AS FROM time_edge;
CREATE OR REPLACE TEMP TABLE disputed AS
WITH changed AS (
    SELECT u.*
    FROM unit AS u
    SEMI JOIN (
        SELECT run_id, provenance, device_id FROM unit SEMI JOIN new_time USING (unit)
        UNION
        SELECT run_id, provenance, device_id FROM new_event WHERE kind = 'device'
    ) USING (run_id, provenance, device_id)
),
added AS (
    SELECT kind, run_id, provenance, device_id, t_ns, sum(delta) AS delta
    FROM (FROM new_edge UNION ALL FROM edge)
    JOIN changed USING (unit)
    GROUP BY ALL
),
span AS (
    SELECT
        * EXCLUDE (t_ns, delta), t_ns AS t0_ns, lead(t_ns) OVER device AS t1_ns, sum(delta) OVER device AS depth
    FROM added
    WINDOW device AS (PARTITION BY kind, run_id, provenance, device_id ORDER BY t_ns)
)
SELECT device_id FROM span WHERE depth > 1
UNION ALL
SELECT device_id
FROM span AS s
JOIN tenure AS t USING (run_id, provenance, device_id)
WHERE kind = 'device_slice' AND depth > 0
GROUP BY run_id, provenance, device_id, t0_ns, t1_ns
HAVING sum(greatest(least(coalesce(left_ns, t1_ns), t1_ns) - greatest(joined_ns, t0_ns), 0)) < t1_ns - t0_ns
UNION ALL
-- A slice in two pools or classes is in no single one.
SELECT device_id FROM new_slice JOIN unit USING (unit) WHERE t1_ns > until_ns
UNION ALL
SELECT device_id
FROM uncounted AS u
JOIN changed USING (unit)
WHERE (run_id, provenance, device_id) IN (SELECT run_id, provenance, device_id FROM new_event WHERE kind = 'device')
   OR EXISTS (
       FROM new_time AS n
       WHERE n.unit = u.unit AND n.kind = u.kind AND n.t0_ns < u.t1_ns AND u.t0_ns < n.t1_ns
   );
