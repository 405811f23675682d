-- For the analyst: is there a nanosecond of a device's time that no slice accounts for, or that two do?
--
-- since (TIMESTAMP): only gaps that begin at or after this time, UTC.
-- until (TIMESTAMP): only gaps that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- No rows is the only good answer, for a device that has left or a run that is over; a device still there is looked at
-- up to its newest slice. Each row is an interval [from_ns, to_ns) and what is wrong with it.
WITH away AS (
    SELECT
        run_id, provenance, device_id, left_ns AS t0_ns,
        lead(joined_ns) OVER (PARTITION BY run_id, provenance, device_id ORDER BY joined_ns) AS t1_ns
    FROM tenure
),
-- Time away is no time of the device: nothing is to account for it, and no slice may.
taken AS (
    SELECT run_id, provenance, device_id, t0_ns, t1_ns, false AS away FROM device_slice
    UNION ALL
    SELECT run_id, provenance, device_id, t0_ns, t1_ns, true FROM away WHERE t1_ns > t0_ns
),
slice AS (
    SELECT
        run_id, provenance, device_id, t0_ns, t1_ns,
        max(t1_ns) OVER before AS covered_to_ns, away OR arg_max(away, t1_ns) OVER before AS away
    FROM taken
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
    WINDOW before AS (
        PARTITION BY run_id, provenance, device_id ORDER BY t0_ns, t1_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
covered AS (SELECT run_id, provenance, device_id, max(t1_ns) AS t1_ns FROM slice GROUP BY ALL),
-- The end of accounted time before each slice, and the slice's begin; also for the end of the device's time.
seam AS (
    SELECT
        slice.run_id, slice.provenance, slice.device_id,
        coalesce(slice.covered_to_ns, device.joined_ns, slice.t0_ns) AS stood_ns,
        slice.t0_ns AS next_ns,
        CASE WHEN device.joined_ns IS NULL THEN 'the device never joined'
             WHEN slice.covered_to_ns IS NULL THEN 'before the device joined'
             WHEN slice.away THEN 'while the device was away'
             ELSE 'in two slices' END AS overlap,
        device.joined_ns IS NULL AND slice.covered_to_ns IS NULL AS unknown,
        slice.t1_ns
    FROM slice
    LEFT JOIN device USING (run_id, provenance, device_id)
    UNION ALL
    SELECT
        run_id, provenance, device_id,
        coalesce(covered.t1_ns, device.joined_ns),
        -- greatest() passes over NULL.
        coalesce(device.left_ns, greatest(covered.t1_ns, epoch_ns(run.ended_at))),
        'after the device left', false, NULL
    FROM device
    LEFT JOIN covered USING (run_id, provenance, device_id)
    LEFT JOIN run USING (run_id, provenance)
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
)
SELECT
    provenance, run_id, device_id,
    least(stood_ns, next_ns) AS from_ns,
    CASE WHEN unknown THEN t1_ns ELSE greatest(stood_ns, next_ns) END AS to_ns,
    to_ns - from_ns AS ns,
    CASE WHEN NOT unknown AND stood_ns < next_ns THEN 'in no slice' ELSE overlap END AS fault
FROM seam
WHERE (stood_ns <> next_ns OR unknown)
  AND (getvariable('since') IS NULL OR from_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
    AND (getvariable('until') IS NULL OR from_ns < epoch_ns(getvariable('until')::TIMESTAMP))
ORDER BY run_id, provenance, device_id, from_ns, fault;
