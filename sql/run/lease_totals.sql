-- Leases on serving devices by how they closed; an open one counts up to its expiry or `period_end_ns`.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0;
SELECT
    coalesce(closed_by, 'open') AS closing,
    count(*) AS leases,
    sum(coalesce(
        duration_ns,
        greatest(least(getvariable('period_end_ns'), epoch_ns(expires_at)) - epoch_ns(granted_at), 0)
    )) AS leased_ns
FROM lease
WHERE getvariable('run_id') IN (run_id, rl_run_id)
GROUP BY ALL
ORDER BY ALL;
