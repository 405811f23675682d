-- One row for each turn of a trajectory on one engine; a turn cut by preemption has a row for each engine it ran on.
--
-- event_time: When it was recorded, UTC, to the microsecond: all attempts at a turn are when the turn is over.
-- outcome: `completed`, `preempted` or `failed`.
-- lease_id: The lease it ran under; NULL on a dedicated device.
CREATE OR REPLACE VIEW turn AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    trajectory_id, group_id, step, turn, attempt, outcome, placement,
    device_id, engine_id, lease_id, policy_version,
    prompt_tokens, cached_tokens, output_tokens, answer_tokens, queue_ns, duration_ns,
    event_time AS "at"
FROM event
WHERE kind = 'turn'
  AND (coalesce(policy_version, 0) | step | turn | attempt | prompt_tokens | cached_tokens | output_tokens |
      answer_tokens | queue_ns | duration_ns) BETWEEN 0 AND 36028797018963967;
