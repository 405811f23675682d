-- One preemption by its event's id, `part`, with the lease that it was of.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE part = 'agent-s0/17';
SELECT
    p.event_time, p.action, p.reason, p.device_id, p.engine_id, p.lease_id, p.step,
    coalesce(p.count, 1) AS times,
    p.latency_ns / 1e6 AS off_device_ms,
    p.latency_mean_ns / 1e6 AS off_device_mean_ms,
    p.duration_ns / 1e6 AS duration_ms,
    p.longest_ns / 1e6 AS longest_ms,
    (epoch_us(l.closed_at) - epoch_us(p.event_time)) / 1e3 AS closed_after_ms,
    p.requests, p.tokens_kept, p.tokens_lost,
    p.kv_budget_bytes_before, p.kv_budget_bytes_after, p.returned_bytes,
    p.writer, p.seq
FROM preemption AS p
LEFT JOIN lease AS l USING (run_id, provenance, lease_id)
WHERE getvariable('run_id') IN (p.run_id, p.rl_run_id) AND p.event_id = getvariable('part')
LIMIT 1;
