-- Idle time of serving devices inside of their leases: lent to rollouts, which had nothing to do there.
-- By hand: SET VARIABLE run_id = '...';
SELECT coalesce(sum(slice.idle_ns), 0)::BIGINT AS leased_unused_ns
FROM device_slice AS slice
SEMI JOIN tenure AS t
    ON t.run_id = slice.run_id AND t.provenance = slice.provenance AND t.device_id = slice.device_id
   AND t.pool = 'serving' AND t.joined_ns <= slice.t0_ns AND slice.t0_ns < coalesce(t.left_ns, slice.t1_ns)
WHERE getvariable('run_id') IN (slice.run_id, slice.rollout_run_id) AND slice.lease_id IS NOT NULL;
