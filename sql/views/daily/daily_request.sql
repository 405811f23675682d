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
    CAST(if(sum(requests) > 9223372036854775807, 9223372036854775807, sum(requests)) AS BIGINT) AS requests,
    CAST(if(sum(completed) > 9223372036854775807, 9223372036854775807, sum(completed)) AS BIGINT) AS completed,
    CAST(if(sum(ttft_ok) > 9223372036854775807, 9223372036854775807, sum(ttft_ok)) AS BIGINT) AS ttft_ok,
    CAST(if(sum(tpot_ok) > 9223372036854775807, 9223372036854775807, sum(tpot_ok)) AS BIGINT) AS tpot_ok,
    CAST(if(sum(slo_ok) > 9223372036854775807, 9223372036854775807, sum(slo_ok)) AS BIGINT) AS slo_ok,
    CAST(if(sum(prompt_tokens) > 9223372036854775807, 9223372036854775807, sum(prompt_tokens)) AS BIGINT)
        AS prompt_tokens,
    CAST(if(sum(output_tokens) > 9223372036854775807, 9223372036854775807, sum(output_tokens)) AS BIGINT)
        AS output_tokens,
    CAST(if(sum(send_delay_ns) > 9223372036854775807, 9223372036854775807, sum(send_delay_ns)) AS BIGINT)
        AS send_delay_ns,
    CAST(if(sum(ttft_samples) > 9223372036854775807, 9223372036854775807, sum(ttft_samples)) AS BIGINT) AS ttft_samples,
    CAST(if(sum(tpot_samples) > 9223372036854775807, 9223372036854775807, sum(tpot_samples)) AS BIGINT) AS tpot_samples,
    min(ttft_budget_min_ns) AS ttft_budget_min_ns,
    max(ttft_budget_max_ns) AS ttft_budget_max_ns,
    min(tpot_budget_min_ns) AS tpot_budget_min_ns,
    max(tpot_budget_max_ns) AS tpot_budget_max_ns
FROM (FROM rolled_daily_request UNION ALL BY NAME FROM unrolled_daily_request)
GROUP BY ALL;
