-- What each event adds to daily_device_time.
SELECT
    CAST(make_timestamp(t0_ns // 1000) AS DATE) AS day,
    run_id, provenance,
    device_id,
    lease_id IS NOT NULL AS lent,
    1 AS slices,
    t1_ns - t0_ns AS ns,
    serving_ns,
    rollout_ns,
    train_ns,
    sync_ns,
    activation_ns,
    headroom_ns,
    idle_ns,
    overlap_ns
FROM unrolled_event
WHERE kind = 'device_slice';
