-- Leased time of serving devices by device class; an open lease counts up to its expiry or
-- `period_end_ns`.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0;
WITH class AS (
    SELECT device_id, arg_max(device_class, joined_ns) AS device_class
    FROM device WHERE run_id = getvariable('run_id') AND pool = 'serving' GROUP BY device_id
)
SELECT
    c.device_class,
    sum(coalesce(
        l.duration_ns,
        greatest(least(getvariable('period_end_ns'), epoch_ns(l.expires_at)) - epoch_ns(l.granted_at), 0)
    )) AS leased_ns
FROM lease AS l
JOIN class AS c USING (device_id)
WHERE l.run_id = getvariable('run_id')
GROUP BY ALL
ORDER BY ALL;
