-- Leases in force at `now_us`, of those that changed in the day before. One that nothing closed ends at its expiry;
-- renewals may come to the ledger a minute late.
-- By hand: SET VARIABLE now_us = epoch_us(now());
SELECT provenance, device_id, count(*) FILTER (NOT closed AND expires_at_us + 60000000 >= getvariable('now_us')) AS open
FROM (
    SELECT
        provenance, run_id, lease_id,
        arg_min(device_id, at_us) AS device_id,
        max(expires_at_us) AS expires_at_us,
        bool_or(action IN ('released', 'preempted', 'expired')) AS closed
    FROM internal.stored_event
    WHERE kind = 'lease' AND at_us >= getvariable('now_us')::BIGINT - 86400000000
    GROUP BY ALL
)
GROUP BY ALL
ORDER BY ALL;
