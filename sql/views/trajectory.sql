-- One row for each trajectory that ended.
--
-- at: When it ended, UTC, to the microsecond; it began duration_ns earlier. AT is a reserved word: write "at" or
--     trajectory.at.
-- outcome: `finished`, `truncated` or `lost`.
-- policy_version: The oldest version that made one of its tokens.
CREATE OR REPLACE VIEW trajectory AS
SELECT
    writer, seq, event_id, run_id, provenance, event.at,
    device_id, engine_id, lease_id, trajectory_id, group_id, step, task, outcome, turns, policy_version, staleness,
    prompt_tokens, output_tokens, answer_tokens, duration_ns
FROM event
WHERE kind = 'trajectory'
  AND (coalesce(policy_version, 0) | step | turns | prompt_tokens | output_tokens | answer_tokens | duration_ns)
      BETWEEN 0 AND 36028797018963967 AND staleness BETWEEN -36028797018963967 AND 36028797018963967;
