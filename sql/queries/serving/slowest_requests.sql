-- For the infra lead: which serving requests were slowest to their first token, and what was their device doing?
--
-- since (TIMESTAMP): only requests recorded at or after this time, UTC.
-- until (TIMESTAMP): only requests recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Slowest first; requests that never had a first token come before all others. Each row of a sample is listed once.
-- `yields_waited` and `revocations` are preemptions on the device between arrival and end; the times of yields are
-- known to the second. A large `send_delay_ns` is the load generator's fault, not the server's.
WITH sent AS (
    SELECT DISTINCT *, request.event_time - to_microseconds(e2e_ns // 1000) AS arrived_at
    FROM request
    WHERE (getvariable('since') IS NULL OR request.event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR request.event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
)
SELECT
    sent.event_time, sent.arrived_at, sent.provenance, sent.run_id, sent.request_id, sent.device_id, sent.lent,
    sent.lease_id,
    sent.outcome, sent.reason, sent.slo_ok, sent.prompt_tokens, sent.output_tokens,
    sent.ttft_ns, sent.ttft_budget_ns, sent.tpot_mean_ns, sent.tpot_max_ns, sent.tpot_budget_ns, sent.e2e_ns,
    sent.send_delay_ns,
    coalesce(sum(coalesce(p.count, 1)) FILTER (p.action = 'yield'), 0)::BIGINT AS yields_waited,
    count(*) FILTER (p.action = 'revoke') AS revocations,
    sent.trace, sent.trace_length_scale, sent.trace_output_length_scale, sent.trace_time_scale
FROM sent
LEFT JOIN preemption AS p
    ON p.run_id = sent.run_id AND p.provenance = sent.provenance AND p.device_id = sent.device_id
   AND p.event_time BETWEEN sent.arrived_at AND sent.event_time
GROUP BY ALL
ORDER BY sent.ttft_ns DESC NULLS FIRST, sent.e2e_ns DESC, sent.request_id;
