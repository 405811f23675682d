-- Units of one device of a run, each with its start: its hardware, pool and class. Read from the ledger's catalog.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE provenance = 'live'; SET VARIABLE device_id = 'serving-0';
SELECT joined_ns, coalesce(hardware_id, run_id || '/' || device_id) AS hardware_id, pool, device_class
FROM tenure
WHERE run_id = getvariable('run_id')
  AND provenance = getvariable('provenance')
  AND device_id = getvariable('device_id')
ORDER BY joined_ns;
