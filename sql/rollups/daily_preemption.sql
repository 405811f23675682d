-- What each event adds to daily_preemption.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    coalesce(rl_run_id, run_id) AS rl_run_id,
    device_id,
    action,
    reason,
    coalesce(count, 1) AS preemptions,
    duration_ns,
    requests,
    tokens_kept,
    tokens_lost
FROM unrolled_event
WHERE kind = 'preemption'
  AND (coalesce(policy_version, 0) | coalesce(step, 0) | coalesce(duration_ns, 0) | coalesce(requests, 0) |
      coalesce(tokens_kept, 0) | coalesce(tokens_lost, 0) | coalesce(kv_budget_bytes_before, 0) |
      coalesce(kv_budget_bytes_after, 0) | coalesce(count, 0) | coalesce(longest_ns, 0) | coalesce(latency_ns, 0) |
      coalesce(latency_mean_ns, 0) | coalesce(returned_bytes, 0)) BETWEEN 0 AND 36028797018963967;
