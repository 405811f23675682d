-- Changes of leases by UTC day and device: how many were granted, renewed, cut and ended, and how.
--
-- day: The UTC day of the changes.
-- action: `granted`, `renewed`, `throttled`, `restored`, `resized`, `frozen`, `released`, `preempted` or `expired`.
-- changes: Number of changes.
CREATE OR REPLACE VIEW daily_lease AS
SELECT
    day, run_id, provenance, device_id, action,
    CAST(if(sum(changes) > 9223372036854775807, 9223372036854775807, sum(changes)) AS BIGINT) AS changes
FROM (FROM rolled_daily_lease UNION ALL BY NAME FROM unrolled_daily_lease)
GROUP BY ALL;
