-- What serving took back from rollouts, by UTC day, device, action and reason.
--
-- day: The UTC day it happened on.
-- rl_run_id: The RL run that the engine was assigned to; the run itself where no other is named.
-- action: `yield`, `cut` or `revoke`.
-- preemptions: Preemptions counted, each yield as one.
-- duration_ns: Time rollout steps waited or cuts took, nanoseconds; NULL where none was measured.
CREATE OR REPLACE VIEW daily_preemption AS
SELECT
    day, run_id, provenance, coalesce(rl_run_id, run_id) AS rl_run_id, device_id, action, reason,
    CAST(if(sum(preemptions) > 9223372036854775807, 9223372036854775807, sum(preemptions)) AS BIGINT) AS preemptions,
    CAST(if(sum(duration_ns) > 9223372036854775807, 9223372036854775807, sum(duration_ns)) AS BIGINT) AS duration_ns,
    CAST(if(sum(requests) > 9223372036854775807, 9223372036854775807, sum(requests)) AS BIGINT) AS requests,
    CAST(if(sum(tokens_kept) > 9223372036854775807, 9223372036854775807, sum(tokens_kept)) AS BIGINT) AS tokens_kept,
    CAST(if(sum(tokens_lost) > 9223372036854775807, 9223372036854775807, sum(tokens_lost)) AS BIGINT) AS tokens_lost
FROM (FROM rolled_daily_preemption UNION ALL BY NAME FROM unrolled_daily_preemption)
GROUP BY ALL;
