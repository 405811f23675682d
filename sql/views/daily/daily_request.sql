-- Serving requests by UTC day, device and whether it was lent when they arrived: how many kept their promises. A
-- request that failed kept none.
--
-- day: The UTC day it happened on.
-- lent: Whether the device was lent when they arrived.
-- requests: Requests counted.
-- completed: Requests that were answered whole.
-- ttft_ok: Requests whose first token came within its budget.
-- tpot_ok: Requests whose mean time for each further token kept its budget.
-- slo_ok: Requests that kept both.
-- prompt_tokens: Tokens of their prompts.
-- output_tokens: Tokens generated for them.
-- send_delay_ns: How late the client sent them in all, nanoseconds.
-- ttft_samples: Requests whose time to first token was measured.
-- tpot_samples: Requests whose time for each further token was measured.
-- ttft_budget_min_ns: The shortest promised time to first token, nanoseconds.
-- ttft_budget_max_ns: The longest, nanoseconds.
-- tpot_budget_min_ns: The shortest promised time for each further token, nanoseconds.
-- tpot_budget_max_ns: The longest, nanoseconds.
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
