-- Amounts that each event adds to daily_device_time.
SELECT
    CAST(CASE WHEN t0_ns BETWEEN 0 AND 4611686018427387903 THEN make_timestamp(t0_ns // 1000) END AS DATE) AS day,
    run_id, provenance,
    coalesce(rollout_run_id, run_id) AS rollout_run_id,
    coalesce(train_run_id, run_id) AS train_run_id,
    device_id,
    lease_id IS NOT NULL AS lent,
    1 AS slices,
    CASE WHEN (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 THEN t1_ns - t0_ns END AS ns,
    serving_ns,
    rollout_ns,
    train_ns,
    sync_ns,
    activation_ns,
    headroom_ns,
    idle_ns,
    overlap_ns
FROM unrolled_event
WHERE kind = 'device_slice' AND reckonable('device_slice');
