-- Add the new slices to what is kept, but those that cross the end of an hour.
CREATE OR REPLACE TEMP TABLE new_slice AS
SELECT
    unit, lease_id, writer, seq, t0_ns, t1_ns,
    serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns
FROM of_unit
WHERE kind = 'device_slice' AND t1_ns > t0_ns
  AND CASE WHEN (coalesce(policy_version, 0) | serving_ns | rollout_ns | train_ns | sync_ns | activation_ns |
      headroom_ns | idle_ns | overlap_ns) BETWEEN 0 AND 36028797018963967 AND (t0_ns | t1_ns) BETWEEN 0 AND
      4611686018427387903 THEN t0_ns <= t1_ns AND t1_ns - t0_ns <= 36028797018963967 AND serving_ns + rollout_ns +
      train_ns + sync_ns + activation_ns + headroom_ns + idle_ns = t1_ns - t0_ns ELSE false END AND device_id <> '';
-- Where slices ended before, of devices that have new ones: that hour's provisioned time grows.
CREATE OR REPLACE TEMP TABLE touched AS
SELECT unit, (max(t_ns) - 1) // 3600000000000 AS hour
FROM (FROM edge WHERE kind = 'device_slice')
SEMI JOIN new_slice USING (unit)
GROUP BY unit;
INSERT INTO slice
SELECT
    unit, t0_ns // 3600000000000 AS hour, lease_id, writer, min(seq), max(seq),
    sum(serving_ns), sum(rollout_ns), sum(train_ns), sum(sync_ns), sum(activation_ns), sum(headroom_ns), sum(idle_ns)
FROM new_slice
WHERE t0_ns // 3600000000000 = (t1_ns - 1) // 3600000000000
GROUP BY unit, hour, lease_id, writer;
INSERT INTO edge
SELECT kind, unit, t_ns, sum(delta)
FROM (
    SELECT
        kind, unit, unnest([t0_ns, t1_ns]) AS t_ns, unnest([1, -1]) AS delta
    FROM (
        SELECT 'device_slice' AS kind, unit, t0_ns, t1_ns FROM new_slice
        UNION ALL
        SELECT kind, unit, t0_ns, t1_ns FROM new_other WHERE kind = 'power'
    )
)
GROUP BY ALL
HAVING sum(delta) <> 0;
