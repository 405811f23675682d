-- What each event adds to daily_lease.
SELECT
    CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
    run_id, provenance,
    device_id,
    action,
    1 AS changes
FROM unrolled_event
WHERE kind = 'lease'
  AND (coalesce(policy_version, 0) | kv_budget_bytes | coalesce(step, 0)) BETWEEN 0 AND 36028797018963967 AND
      isfinite(compute_share) AND expires_at_us BETWEEN 0 AND 4611686018427387 AND coalesce(isfinite(regret_share),
      true) AND lease_id <> '';
