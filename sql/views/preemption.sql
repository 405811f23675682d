-- One row for each time serving took something back from a rollout engine.
--
-- at: When it happened, UTC, to the microsecond; for a yield, when it began. AT is a reserved word: write "at" or
--     preemption.at.
-- action: `yield` (a running rollout step waited between layers), `cut` (the KV budget was reduced) or `revoke` (the
--     whole lease ended).
-- duration_ns: How long a yield lasted, nanoseconds.
CREATE OR REPLACE VIEW preemption AS
SELECT
    writer, seq, event_id, run_id, provenance, event.at,
    action, reason, device_id, engine_id, lease_id, trajectory_id, policy_version, step, duration_ns,
    requests, tokens_kept, tokens_lost, kv_budget_bytes_before, kv_budget_bytes_after
FROM event
WHERE kind = 'preemption';
