-- One row for each serving request as its client saw it, with whether it kept its promises and the traffic it was
-- part of. A request that failed kept none.
--
-- event_time: When its last token came or it failed, UTC, to the microsecond; it arrived e2e_ns earlier.
-- lease_id: The lease in force on the device when it arrived; NULL if the device was not lent.
-- lent: Whether the device was lent when it arrived.
-- cached_tokens: Prompt tokens that the server found in its prefix cache; NULL where it did not say.
-- ttft_ok: Whether the first token came within its budget.
-- tpot_ok: Whether the mean time for each further token kept its budget; true for a single token.
-- slo_ok: Both of these.
CREATE OR REPLACE VIEW request AS
WITH sent AS (
    SELECT
        *,
        outcome = 'completed' AND coalesce(ttft_ns <= ttft_budget_ns, false) AS ttft_ok,
        outcome = 'completed' AND coalesce(tpot_mean_ns <= tpot_budget_ns, output_tokens <= 1) AS tpot_ok
    FROM event
    WHERE kind = 'request' AND reckonable('request')
)
SELECT
    sent.writer, sent.seq, sent.event_id, sent.run_id, sent.provenance, sent.event_time,
    sent.request_id, sent.device_id, sent.engine_id, sent.lease_id, sent.lease_id IS NOT NULL AS lent,
    sent.trajectory_id, sent.policy_version,
    sent.outcome, sent.reason,
    sent.prompt_tokens, sent.cached_tokens, sent.output_tokens,
    sent.ttft_ns, sent.tpot_mean_ns, sent.tpot_max_ns, sent.e2e_ns,
    sent.ttft_budget_ns, sent.tpot_budget_ns, sent.send_delay_ns,
    sent.ttft_ok, sent.tpot_ok, sent.ttft_ok AND sent.tpot_ok AS slo_ok,
    run.trace, run.trace_keep_share, run.trace_length_scale, run.trace_output_length_scale, run.trace_time_scale
FROM sent
LEFT JOIN run ON run.run_id = sent.run_id AND run.provenance = sent.provenance;
