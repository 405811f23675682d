-- One row for each decision about a device because of lending: a serving device was kept to be lent, or a dedicated one
-- was given up because rollouts can borrow. Savings in cash are computed from these decisions.
--
-- event_time: When the decision was recorded, UTC, to the microsecond.
-- decision: `kept`: without lending, the serving device would have been given back for the interval. `let_go`: the
--     dedicated device was given up for the interval, because rollouts can borrow.
-- t0_ns: Start of the interval that the decision is about, UTC nanoseconds since the Unix epoch.
-- t1_ns: End of the interval (not in it), UTC nanoseconds since the Unix epoch.
-- reason: The decider's reason, in words.
CREATE OR REPLACE VIEW scale_down AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    decision, t0_ns, t1_ns, device_class, decided_by, reason
FROM event
WHERE kind = 'scale_down' AND reckonable('scale_down');
