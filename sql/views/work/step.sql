-- One row for each RL step: rollout, update, sync.
--
-- event_time: When the step was over, UTC, to the microsecond.
-- accepted_share: The verifier's accept rate in this step, 0 to 1: trajectories_accepted / trajectories.
-- policy_version: The version that the step published.
-- rollout_ns: Time of the rollout phase, nanoseconds. Rollout phases of several steps may overlap.
-- train_ns: Time of the update, nanoseconds.
-- sync_ns: Time of publishing the new weights, nanoseconds.
-- total_ns: Time of the whole step from the begin of its rollouts, nanoseconds. Steps may overlap, so these times do
--     not sum to the run's time.
CREATE OR REPLACE VIEW step AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id,
    step, policy_version, groups, trajectories, trajectories_accepted,
    trajectories_accepted / nullif(trajectories, 0) AS accepted_share,
    reward_mean, loss, entropy, kl, grad_norm, tokens_trained,
    rollout_ns, train_ns, sync_ns, total_ns
FROM event
WHERE kind = 'step' AND reckonable('step');
