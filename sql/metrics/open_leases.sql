-- Leases that are open by their last event, of those that changed since `since_us`. One that has not been renewed for a
-- day is no longer in force, whatever it says.
-- By hand: SET VARIABLE since_us = 0;
SELECT provenance, device_id, count(*) FILTER (NOT closed) AS open
FROM (
    SELECT
        provenance, run_id, lease_id,
        arg_min(device_id, at_us) AS device_id,
        bool_or(action IN ('released', 'preempted', 'expired')) AS closed
    FROM stored_event
    WHERE kind = 'lease' AND at_us >= getvariable('since_us')::BIGINT
    GROUP BY ALL
)
GROUP BY ALL
ORDER BY ALL;
