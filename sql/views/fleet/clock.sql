-- Offset of a device's host clock from the controller's: one row when a controller first hears of the device, and a row
-- for each change of more than 5 ms. A row is valid until the device's next row. The measured offset is too
-- low by the delay of the quickest recent message.
--
-- event_time: When it was measured, by the controller's clock, UTC, to the microsecond.
-- action: `heard`: a controller heard of the device for the first time. `set`: one of the two wall clocks was set.
--     `moved`: they drifted apart, or a quicker message says so; once a minute at most.
-- offset_ns: Wall clock of the device's host less the controller's, nanoseconds.
-- device_time_offset_ns: The clock that the device's agent records by (all times of its slices and leases, of its
--     engines and their syncs, and of when it joined and left), less the controller's wall clock, nanoseconds. It is
--     taken at the host's boot, never before what was recorded of the device by then, and continues from there,
--     whatever the host's wall clock is set to.
CREATE OR REPLACE VIEW clock AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    host, action, offset_ns, device_time_offset_ns
FROM event
WHERE kind = 'clock' AND reckonable('clock');
