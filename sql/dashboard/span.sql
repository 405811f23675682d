-- When devices were there, UTC nanoseconds: from when the first joined to when the last left. A device that has not
-- left counts to the end of the last day on which its run has a slice, and at least to the end of its run. A run whose
-- devices were archived counts by its days.
SELECT
    min(coalesce(joined_ns, 1000 * epoch_us(sliced.since))) AS from_ns,
    -- greatest() passes over NULL.
    max(coalesce(left_ns, greatest(joined_ns, 1000 * epoch_us(ended_at), 1000 * epoch_us(sliced.until)))) AS to_ns
FROM device
LEFT JOIN run USING (run_id, provenance)
FULL JOIN (
    SELECT run_id, provenance, min(day) AS since, max(day) + INTERVAL 1 DAY AS until
    FROM daily_device_time
    GROUP BY ALL
) AS sliced
    USING (run_id, provenance);
