-- The last lease of device $device_id in run $run_id, by what was recorded since $since_us (UTC microseconds): as it
-- was granted, when it ends unless it is renewed once more, and whether it has ended. Of the events themselves: an
-- agent waits for the answer.
SELECT
    CAST(regexp_extract(lease_id, '-([0-9]+)$', 1) AS BIGINT) AS number,
    bool_or(action IN ('released', 'preempted', 'expired')) AS ended,
    max(expires_at_us) AS expires_at_us,
    lease_id,
    min(at_us) AS at_us,
    arg_min(engine_id, at_us) AS engine_id,
    arg_min(kv_budget_bytes, at_us) AS kv_budget_bytes,
    arg_min(compute_share, at_us) AS compute_share,
    arg_min(regret_share, at_us) AS regret_share,
    arg_min(step, at_us) AS step,
    arg_min(rl_run_id, at_us) AS rl_run_id
FROM event
WHERE kind = 'lease' AND run_id = $run_id AND device_id = $device_id AND at_us >= $since_us
GROUP BY lease_id
ORDER BY number DESC
LIMIT 1;
