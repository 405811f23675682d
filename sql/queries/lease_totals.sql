-- Leases on serving devices by how they closed; an open one counts up to `period_end_ns`.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0;
SELECT
    coalesce(closed_by, 'open') AS closing,
    count(*) AS leases,
    sum(coalesce(
        CASE WHEN closed_at IS NOT NULL THEN duration_ns END,
        greatest(getvariable('period_end_ns')::BIGINT - epoch_ns(granted_at), 0)
    )) AS leased_ns
FROM lease
WHERE run_id = getvariable('run_id')
GROUP BY ALL
ORDER BY ALL;
