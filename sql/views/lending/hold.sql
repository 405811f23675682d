-- Why rollouts that had work were refused the device. There is one row for each lease, second and reason; without a
-- lease, one row for each reason, of at most ten seconds in which turns waited. The refusals under a lease, with the
-- yields in `preemption`, are the cause of the headroom in `device_slice`. Other refusals, and those while serving ran
-- in parallel, are in no slice's headroom, so the times here sum to more.
--
-- event_time: When the first refusal of the row began, UTC, to the microsecond.
-- reason: The rule that refused: `no_lease`, `serving_step`, `prefill_slack`, `decode_slack`, `next_request`,
--     `compute_share`, `kv_budget`, `regret`, `unknown_times`, `no_serving`, `policy`, `withheld`
--     (leases are, at random; see `holdout`), or what limited credit beside live requests: `stretch`, `serving_memory`,
--     `interference`, `control`. Without a lease also `drained`, `agent_silent`, `ledger_away`, `engine_away`,
--     `no_engine`, `model_change`, `sync`, `sync_failed`, `other_engines`, `activation`, `kv_memory`, `serving_busy`,
--     `serving_late`, `serving_recovers`, `budget_unreachable`.
-- explanation: The reason in the words of `rose status`, with its figures; only without a lease.
-- rl_run_id: The RL run that the engine was assigned to; `run_id` if none is named.
-- count: Refusals that ended in that second.
-- duration_ns: How long the refusals lasted together, nanoseconds.
CREATE OR REPLACE VIEW hold AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    coalesce(rl_run_id, run_id) AS rl_run_id, step, reason, explanation, count, duration_ns
FROM event
WHERE kind = 'hold' AND reckonable('hold');
