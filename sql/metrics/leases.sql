-- Leases that were granted and closed, by how they closed.
SELECT
    provenance, device_id, action,
    sum(changes) FILTER (action = 'granted') AS granted,
    sum(changes) FILTER (action <> 'granted') AS closed
FROM daily_lease
WHERE action IN ('granted', 'released', 'preempted', 'expired')
GROUP BY ALL
ORDER BY ALL;
