-- What each event adds to daily_sync.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    device_id,
    route,
    encoding,
    ok,
    1 AS syncs,
    wire_bytes,
    dense_bytes,
    pause_ns,
    total_ns
FROM unrolled_event
WHERE kind = 'sync'
  AND (coalesce(policy_version, 0) | coalesce(base_version, 0) | wire_bytes | dense_bytes |
      coalesce(changed_elements, 0) | coalesce(total_elements, 0) | coalesce(encode_ns, 0) | coalesce(fetch_ns, 0) |
      coalesce(verify_ns, 0) | coalesce(stage_ns, 0) | coalesce(pause_ns, 0) | coalesce(acknowledge_ns, 0) |
      total_ns | coalesce(step, 0)) BETWEEN 0 AND 36028797018963967;
