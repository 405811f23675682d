-- One row for each serving request: whether it kept its latency budgets, and the traffic it was part of. A failed
-- request kept none; one that its client gave up kept those not exceeded by then. Above
-- `coserving.recorded_requests_per_s_max`, engines record a sample, and its rows are repeated for each request that
-- they stand for. So counts and shares are exact, but times and tokens are those of the sample.
--
-- event_time: When its last token came or it failed, UTC, to the microsecond; it arrived e2e_ns earlier.
-- lease_id: The lease in force on the device when it arrived; NULL if the device was not lent.
-- lent: Whether the device was lent when it arrived.
-- source: Who measured it: `engine`, which serves it, or `client`, which replays traffic and records it itself.
-- outcome: `completed`, `failed`, or `aborted`: its client gave it up, or asked for what cannot be served.
-- finish_reason: Why it ended, as SGLang names it: `stop`, `length` or `abort`; NULL if the client measured.
-- queue_ns: From its arrival until its first step, nanoseconds; NULL if the client measured.
-- priority: Its class in SGLang's API; NULL if it gave none.
-- cached_tokens: Prompt tokens that the server found in its prefix cache; NULL if it did not say.
-- requests_in_row: How many requests its row of the ledger stands for: above 1 in a sample.
-- ttft_ok: Whether the first token came within its budget.
-- tpot_ok: Whether the mean time for each further token kept its budget; true for a single token.
-- slo_ok: Whether it kept both budgets.
CREATE OR REPLACE VIEW request AS
WITH sent AS (
    SELECT
        *,
        outcome <> 'failed' AND coalesce(ttft_ns, if(outcome = 'aborted', e2e_ns, NULL), ttft_budget_ns + 1)
            <= ttft_budget_ns AS ttft_ok,
        outcome <> 'failed' AND coalesce(tpot_mean_ns <= tpot_budget_ns, output_tokens <= 1) AS tpot_ok,
        coalesce(requests, 1) AS requests_in_row,
        unnest(range(requests_in_row))
    FROM event
    WHERE kind = 'request' AND reckonable('request')
)
SELECT
    sent.writer, sent.seq, sent.event_id, sent.run_id, sent.provenance, sent.event_time,
    sent.request_id, sent.device_id, sent.engine_id, sent.lease_id, sent.lease_id IS NOT NULL AS lent,
    sent.trajectory_id, sent.policy_version,
    coalesce(sent.source, 'client') AS source, sent.outcome, sent.reason, sent.finish_reason, sent.priority,
    sent.prompt_tokens, sent.cached_tokens, sent.output_tokens,
    sent.queue_ns, sent.ttft_ns, sent.tpot_mean_ns, sent.tpot_max_ns, sent.e2e_ns,
    sent.ttft_budget_ns, sent.tpot_budget_ns, sent.send_delay_ns,
    sent.requests_in_row, sent.ttft_ok, sent.tpot_ok, sent.ttft_ok AND sent.tpot_ok AS slo_ok,
    run.trace, run.trace_keep_share, run.trace_length_scale, run.trace_output_length_scale, run.trace_time_scale
FROM sent
LEFT JOIN run ON run.run_id = sent.run_id AND run.provenance = sent.provenance;
