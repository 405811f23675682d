-- Preemptions by what serving took back.
SELECT provenance, device_id, action, sum(preemptions) AS preemptions
FROM daily_preemption
GROUP BY ALL
ORDER BY ALL;
