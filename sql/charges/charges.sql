-- Every charge of the period, in an order of its own.
SELECT
    make_timestamp(hour * 3600000000) AS hour, run_id, provenance, device_id, pool, device_class, commitment, lease_id,
    kind, bucket, team, policy_version, task, fate, cause, route, ns, tokens, bytes, energy_mw_ns, cost_nano,
    writer, first_seq, last_seq
FROM charge
WHERE charge.hour >= getvariable('from_ns') // 3600000000000 AND charge.hour < getvariable('to_ns') // 3600000000000
  AND provenance = getvariable('provenance')
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
ORDER BY
    charge.hour, run_id, device_id, lease_id NULLS FIRST, position, policy_version NULLS FIRST, task NULLS FIRST,
    fate NULLS FIRST, cause NULLS FIRST, route NULLS FIRST;
