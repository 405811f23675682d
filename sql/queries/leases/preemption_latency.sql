-- For the infra lead: once serving wants its device back, how long until the lease is closed, and how long do rollouts
-- wait for serving?
--
-- since (TIMESTAMP): only preemptions at or after this time, UTC.
-- until (TIMESTAMP): only preemptions before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `yield`: how long the rollout engine waited for serving between layers; if yields were recorded by the second, the
-- longest of each second. `cut`: from when serving crossed the watermark until the memory was free. `revoke`: from the
-- revocation until the ledger has the lease as closed, with the time to write both. `off_device_max_ns`: longest time
-- from when serving wanted the device until the rollout was off it. Percentiles are measured values, nanoseconds.
WITH taken AS (
    SELECT
        preemption.provenance, preemption.run_id, preemption.device_id, preemption.action, preemption.reason,
        CASE preemption.action
            WHEN 'yield' THEN coalesce(preemption.longest_ns, preemption.duration_ns)
            WHEN 'cut' THEN preemption.duration_ns
            WHEN 'revoke' THEN 1000 * (epoch_us(lease.closed_at) - epoch_us(preemption.event_time))
        END AS latency_ns,
        preemption.latency_ns AS off_device_ns,
        coalesce(preemption.count, 1) AS times
    FROM preemption
    LEFT JOIN lease USING (run_id, provenance, lease_id)
    WHERE preemption.action IN ('yield', 'cut', 'revoke')
      AND (getvariable('since') IS NULL OR preemption.event_time >= getvariable('since')::TIMESTAMP)
        AND (getvariable('until') IS NULL OR preemption.event_time < getvariable('until')::TIMESTAMP)
        AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (preemption.run_id, preemption.rl_run_id))
        AND (getvariable('device_id') IS NULL OR preemption.device_id = getvariable('device_id'))
)
SELECT
    provenance, run_id, device_id, action, reason,
    sum(times)::BIGINT AS preemptions,
    count(latency_ns) AS measured,
    quantile_disc(latency_ns, 0.5) AS latency_p50_ns,
    quantile_disc(latency_ns, 0.9) AS latency_p90_ns,
    quantile_disc(latency_ns, 0.99) AS latency_p99_ns,
    max(latency_ns) AS latency_max_ns,
    max(off_device_ns) AS off_device_max_ns
FROM taken
GROUP BY ALL
ORDER BY run_id, provenance, device_id, action, reason;
