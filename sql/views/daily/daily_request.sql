-- Serving requests by UTC day, by device, and by whether the device was lent when they arrived, with how many kept
-- their latency budgets. A failed request kept none.
--
-- day: The UTC day on which the requests ended.
-- lent: Whether the device was lent when the requests arrived.
-- requests: Number of requests.
-- completed: Requests that were answered completely.
-- ttft_ok: Requests whose first token came within its latency budget.
-- tpot_ok: Requests whose mean time for each further token kept its latency budget.
-- slo_ok: Requests that kept both budgets.
-- prompt_tokens: Tokens of the requests' prompts.
-- output_tokens: Tokens generated for the requests.
-- send_delay_ns: Sum of the times by which the client sent the requests late, nanoseconds.
-- ttft_samples: Requests whose time to first token was measured.
-- tpot_samples: Requests whose time for each further token was measured.
-- ttft_budget_min_ns: The shortest promised time to first token, nanoseconds.
-- ttft_budget_max_ns: The longest promised time to first token, nanoseconds.
-- tpot_budget_min_ns: The shortest promised time for each further token, nanoseconds.
-- tpot_budget_max_ns: The longest promised time for each further token, nanoseconds.
CREATE OR REPLACE VIEW daily_request AS
SELECT
    day, run_id, provenance, device_id, lent,
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS('(requests|completed|ok|tokens|samples|delay_ns)$')) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS('(requests|completed|ok|tokens|samples|delay_ns)$'))
    ) AS BIGINT),
    min(ttft_budget_min_ns) AS ttft_budget_min_ns,
    max(ttft_budget_max_ns) AS ttft_budget_max_ns,
    min(tpot_budget_min_ns) AS tpot_budget_min_ns,
    max(tpot_budget_max_ns) AS tpot_budget_max_ns
FROM (FROM rolled_daily_request UNION ALL BY NAME FROM unrolled_daily_request)
GROUP BY ALL;
