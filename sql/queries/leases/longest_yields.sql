-- For the infra lead: when did a rollout engine wait longest for serving in the middle of a step?
--
-- since (TIMESTAMP): only yields at or after this time, UTC.
-- until (TIMESTAMP): only yields before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- The longest yield of each lease and second, longest first. `yields` is the number of yields in the second, and
-- `yielded_ns` their time together. `latency_ns` is the longest time from when serving wanted the device until the
-- rollout was off it. `serving_share` is serving's share of the slice, 0 to 1. A long yield while serving did little is
-- a sign of a stuck step.
SELECT
    waited.event_time, waited.provenance, waited.run_id, waited.device_id, waited.engine_id, waited.lease_id,
    waited.step,
    waited.reason, coalesce(waited.longest_ns, waited.duration_ns) AS duration_ns,
    coalesce(waited.count, 1) AS yields, waited.duration_ns AS yielded_ns, waited.latency_ns, waited.latency_mean_ns,
    CASE WHEN epoch_ns(waited.event_time) < slice.t1_ns THEN slice.serving_ns / nullif(slice.ns, 0) END AS serving_share
FROM preemption AS waited
ASOF LEFT JOIN device_slice AS slice
    ON waited.run_id = slice.run_id AND waited.provenance = slice.provenance AND waited.device_id = slice.device_id
   AND epoch_ns(waited.event_time) >= slice.t0_ns
WHERE waited.action = 'yield'
  AND (getvariable('since') IS NULL OR waited.event_time >= getvariable('since')::TIMESTAMP)
    AND (getvariable('until') IS NULL OR waited.event_time < getvariable('until')::TIMESTAMP)
    AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (waited.run_id, waited.rl_run_id))
    AND (getvariable('device_id') IS NULL OR waited.device_id = getvariable('device_id'))
ORDER BY coalesce(waited.longest_ns, waited.duration_ns) DESC NULLS LAST, waited.event_time, waited.writer, waited.seq;
