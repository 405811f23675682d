-- Preemptions of rollouts by serving, by UTC day, device, action and reason.
--
-- day: The UTC day of the preemptions.
-- rl_run_id: The RL run that the engine was assigned to; `run_id` if none is named.
-- action: `yield`, `cut` or `revoke`.
-- preemptions: Number of preemptions; each yield counts as one.
-- duration_ns: Time that rollout steps waited or that cuts took, nanoseconds; NULL if none was measured.
CREATE OR REPLACE VIEW daily_preemption AS
SELECT
    day, run_id, provenance, coalesce(rl_run_id, run_id) AS rl_run_id, device_id, action, reason,
    -- A sum is at most what a BIGINT holds.
    CAST(if(
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, rl_run_id, device_id, action, reason))) > 9223372036854775807,
        9223372036854775807,
        sum(COLUMNS(* EXCLUDE (day, run_id, provenance, rl_run_id, device_id, action, reason)))
    ) AS BIGINT)
FROM (FROM rolled_daily_preemption UNION ALL BY NAME FROM unrolled_daily_preemption)
GROUP BY ALL;
