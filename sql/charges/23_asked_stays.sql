-- Time in the period of each device that is asked about.
SELECT run_id, device_id, hardware_id, pool, device_class, t0_ns, t1_ns
FROM in_period JOIN stay USING (unit)
WHERE asked
ORDER BY run_id, device_id, t0_ns;
