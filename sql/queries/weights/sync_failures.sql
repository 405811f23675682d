-- For the RL engineer: which weight syncs did not bring their engine to the version, why, and when was this made good?
--
-- since (TIMESTAMP): only syncs at or after this time, UTC.
-- until (TIMESTAMP): only syncs before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Newest first. `made_good_at` is the time of the engine's next successful sync to that version or a newer one. NULL
-- means that the engine is still behind, or gone.
SELECT
    failed.event_time, failed.provenance, failed.run_id, failed.device_id, failed.engine_id, failed.lease_id,
    failed.step,
    failed.policy_version, failed.base_version, failed.encoding, failed.route, failed.source,
    failed.wire_bytes, failed.total_ns, failed.reason,
    min(later.event_time) AS made_good_at
FROM sync AS failed
LEFT JOIN sync AS later
    ON later.run_id = failed.run_id AND later.provenance = failed.provenance AND later.engine_id = failed.engine_id
   -- Another RL run's version of that number, on the same engine, does not count.
   AND later.rl_run_id = failed.rl_run_id AND later.ok
   AND later.policy_version >= failed.policy_version AND later.event_time >= failed.event_time
WHERE NOT failed.ok
  AND (getvariable('since') IS NULL OR failed.event_time >= getvariable('since')::TIMESTAMP)
    AND (getvariable('until') IS NULL OR failed.event_time < getvariable('until')::TIMESTAMP)
    AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (failed.run_id, failed.rl_run_id))
    AND (getvariable('device_id') IS NULL OR failed.device_id = getvariable('device_id'))
GROUP BY ALL
ORDER BY failed.event_time DESC, failed.run_id, failed.engine_id;
