-- For the finance lead: how much device time went into starting and activating engines instead of working?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `activation_share` is a share of the device's time in the slices counted. `starts` and `deaths` count the engines on
-- the device in the same time. If the share grows with deaths, there is a fault. If it shrinks with the length of the
-- run, it is the price of starting.
WITH spent AS (
    SELECT
        provenance, run_id, device_id, sum(activation_ns)::BIGINT AS activation_ns, sum(ns)::BIGINT AS ns
    FROM device_slice
    WHERE (getvariable('since') IS NULL OR t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
      AND (getvariable('until') IS NULL OR t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
    GROUP BY ALL
),
started AS (
    SELECT
        provenance, run_id, device_id,
        count(*) FILTER (action = 'started') AS starts,
        count(*) FILTER (action = 'activated') AS activations,
        count(*) FILTER (action = 'died') AS deaths
    FROM engine
    WHERE (getvariable('since') IS NULL OR engine.event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR engine.event_time < getvariable('until')::TIMESTAMP)
    GROUP BY ALL
)
SELECT
    provenance, run_id, device_id, device.pool,
    coalesce(started.starts, 0) AS starts,
    coalesce(started.activations, 0) AS activations,
    coalesce(started.deaths, 0) AS deaths,
    spent.activation_ns, spent.ns,
    spent.activation_ns / nullif(spent.ns, 0) AS activation_share
FROM spent
LEFT JOIN started USING (provenance, run_id, device_id)
LEFT JOIN device USING (provenance, run_id, device_id)
ORDER BY run_id, provenance, device_id;
