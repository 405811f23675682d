-- One row for each trajectory that ended.
--
-- event_time: When it ended, UTC, to the microsecond; it began duration_ns earlier.
-- outcome: `finished`, `truncated` or `lost`.
-- policy_version: The oldest version that made one of its tokens.
-- reason: Why it was lost or cut short.
CREATE OR REPLACE VIEW trajectory AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, group_id, step, task, outcome, turns, policy_version, staleness,
    prompt_tokens, output_tokens, answer_tokens, duration_ns, tool_calls, tool_ns, reason
FROM event
WHERE kind = 'trajectory' AND reckonable('trajectory');
