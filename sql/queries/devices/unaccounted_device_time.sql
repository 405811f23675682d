-- For the analyst: is there a nanosecond of a device's time that no slice accounts for?
--
-- since (TIMESTAMP): only gaps that begin at or after this time, UTC.
-- until (TIMESTAMP): only gaps that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- For a device that has left or a run that is over, no rows is the only good answer. A device that is still there is
-- checked up to its newest slice. Each row is an interval [from_ns, to_ns) and what is wrong with it. Slices that
-- overlap others, or in whose time the device was not there, are in `faulty_event` and do not count here.
WITH accounted AS (
    SELECT s.run_id, s.provenance, s.device_id, joined_ns, t0_ns, t1_ns
    FROM device_slice AS s
    ASOF LEFT JOIN tenure AS t
        ON s.run_id = t.run_id AND s.provenance = t.provenance AND s.device_id = t.device_id AND t0_ns >= joined_ns
    UNION ALL
    SELECT run_id, provenance, device_id, joined_ns, joined_ns, joined_ns FROM tenure
    UNION ALL
    -- greatest() passes over NULL.
    SELECT
        run_id, provenance, device_id, joined_ns,
        coalesce(left_ns, greatest(joined_ns, epoch_ns(ended_at))) AS end_ns, end_ns
    FROM tenure
    LEFT JOIN run USING (run_id, provenance)
),
seam AS (
    SELECT
        *,
        max(t1_ns) OVER (
            PARTITION BY run_id, provenance, device_id, joined_ns ORDER BY t0_ns, t1_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to_ns
    FROM accounted
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
)
SELECT
    provenance, run_id, device_id,
    if(joined_ns IS NULL, t0_ns, covered_to_ns) AS from_ns,
    if(joined_ns IS NULL, t1_ns, t0_ns) AS to_ns,
    to_ns - from_ns AS ns,
    if(joined_ns IS NULL, 'the device never joined', 'in no slice') AS fault
FROM seam
WHERE from_ns < to_ns
  AND (getvariable('since') IS NULL OR from_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
  AND (getvariable('until') IS NULL OR from_ns < epoch_ns(getvariable('until')::TIMESTAMP))
ORDER BY run_id, provenance, device_id, from_ns;
