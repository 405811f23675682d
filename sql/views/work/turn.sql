-- One row for each turn of a trajectory on one engine; a turn cut by preemption has a row for each engine it ran on.
--
-- event_time: When it was recorded, UTC, to the microsecond: all attempts at a turn are recorded when the turn is over.
-- fleet_run_id: The run of its device, engine and lease: the fleet's if several RL runs share a fleet.
-- group_id: The group of its trajectory; NULL if the trainer did not say.
-- step: Number of the RL step; NULL if the trainer did not say.
-- outcome: `completed`, `preempted` (it went on elsewhere with the tokens that it had) or `failed`.
-- lease_id: The lease it ran under; NULL on a dedicated device.
CREATE OR REPLACE VIEW turn AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time, coalesce(fleet_run_id, run_id) AS fleet_run_id,
    trajectory_id, group_id, step, turn, attempt, outcome, placement,
    device_id, engine_id, lease_id, policy_version,
    prompt_tokens, cached_tokens, output_tokens, answer_tokens, queue_ns, duration_ns
FROM event
WHERE kind = 'turn' AND reckonable('turn');
