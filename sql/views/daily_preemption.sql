-- What serving took back from rollouts, by UTC day, device, action and reason.
--
-- day: The UTC day it happened on.
-- action: `yield`, `cut` or `revoke`.
-- preemptions: Preemptions counted, each yield as one.
-- duration_ns: Time rollout steps waited or cuts took, nanoseconds; NULL where none was measured.
CREATE OR REPLACE VIEW daily_preemption AS
SELECT
    day, run_id, provenance, device_id, action, reason,
    CAST(least(sum(preemptions), 9223372036854775807) AS BIGINT) AS preemptions,
    CAST(least(sum(duration_ns), 9223372036854775807) AS BIGINT) AS duration_ns,
    CAST(least(sum(requests), 9223372036854775807) AS BIGINT) AS requests,
    CAST(least(sum(tokens_kept), 9223372036854775807) AS BIGINT) AS tokens_kept,
    CAST(least(sum(tokens_lost), 9223372036854775807) AS BIGINT) AS tokens_lost
FROM (FROM rolled_daily_preemption UNION ALL BY NAME FROM unrolled_daily_preemption)
GROUP BY ALL;
