-- Weight syncs to one device in [from_ns, to_ns), and its power readings that lie there with a part at least. Read from
-- the ledger's catalog.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE provenance = 'live'; SET VARIABLE device_id = 'serving-0';
-- SET VARIABLE from_ns = 1793491200000000000; SET VARIABLE to_ns = 1793494800000000000;
SELECT
    kind, writer, seq, at_us, nullif(rl_run_id, run_id) AS rl_run_id, route, policy_version, wire_bytes,
    t0_ns, t1_ns, power_mw
FROM event
ANTI JOIN uncounted_time USING (writer, seq)
WHERE run_id = getvariable('run_id')
  AND provenance = getvariable('provenance')
  AND device_id = getvariable('device_id')
  AND CASE kind
      WHEN 'sync' THEN at_us >= getvariable('from_ns') // 1000 AND at_us < getvariable('to_ns') // 1000
          AND reckonable('sync')
      WHEN 'power' THEN power_mw IS NOT NULL AND t1_ns > t0_ns
          AND t0_ns < getvariable('to_ns') AND t1_ns > getvariable('from_ns')
          AND reckonable('power')
      ELSE false END
ORDER BY writer, seq;
