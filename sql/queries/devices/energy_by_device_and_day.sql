-- For the finance lead: how much energy did each device draw, by day?
--
-- since (TIMESTAMP): only readings that begin at or after this time, UTC.
-- until (TIMESTAMP): only readings that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Only metered energy counts. Compare `metered_ns` with the device's time to see how much was metered. One kWh is 3.6
-- million joules. A reading counts on the day (UTC) on which it begins.
SELECT
    make_timestamp(t0_ns // 1000)::DATE AS day,
    provenance, device_id, source,
    sum(t1_ns - t0_ns)::BIGINT AS metered_ns,
    -- A milliwatt for a nanosecond is 1e-12 joules.
    sum(power_mw::HUGEINT * (t1_ns - t0_ns)) / 1e12 AS energy_j,
    sum(power_mw::HUGEINT * (t1_ns - t0_ns)) / nullif(sum(t1_ns - t0_ns), 0) / 1e3 AS power_mean_w,
    max(power_mw) / 1e3 AS power_max_w
FROM power
WHERE power_mw IS NOT NULL
  AND (getvariable('since') IS NULL OR t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
  AND (getvariable('until') IS NULL OR t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
  AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY day, provenance, device_id, source;
