-- For the RL engineer: is the policy learning, and where does the time of a step go?
--
-- since (TIMESTAMP): only steps that ended at or after this time, UTC.
-- until (TIMESTAMP): only steps that ended before this time, UTC.
-- run_id (VARCHAR): only this run.
--
-- One row for each step. `accepted_share` is the verifier's accept rate: acceptance, not correctness. `other_ns` is the
-- step's time outside rollouts, update and sync: its rollouts waited for the update of the step before.
SELECT
    provenance, run_id, step.step, event_time AS ended_at, policy_version,
    groups, trajectories, trajectories_accepted, accepted_share, reward_mean,
    loss, entropy, kl, grad_norm, tokens_trained,
    rollout_ns, train_ns, sync_ns, total_ns,
    total_ns - rollout_ns - train_ns - sync_ns AS other_ns
FROM step
WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
ORDER BY run_id, provenance, step.step, ended_at;
