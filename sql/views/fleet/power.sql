-- One row for each reading of a device over [t0_ns, t1_ns): its mean power, and how it was used. Rows without
-- `power_mw` say that nothing metered the device then; leave them out of means.
--
-- power_mw: Mean power over the interval, milliwatts; NULL if nothing measured it. It is never an estimate.
-- source: How the power was read: `nvml-energy` (difference of the GPU's energy counter), `nvml-power` (readings of
--     power summed over time), `rapl` (counters of whole CPU packages), `other` (another meter), or `not measured`.
-- memory_used_bytes: Memory in use on the GPU or MIG instance, bytes; NULL for CPU cores. Older readings of CPU cores
--     have the resident memory of the processes that may run only on these cores.
-- reason: Why the power was not measured, or not read as usual.
CREATE OR REPLACE VIEW power AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    t0_ns, t1_ns, power_mw, source, energy_mj, package_energy_mj, busy_share, memory_used_bytes,
    sm_clock_mhz, clock_reasons, mig_instances, reason
FROM event
ANTI JOIN uncounted_time USING (writer, seq)
WHERE kind = 'power' AND reckonable('power');
