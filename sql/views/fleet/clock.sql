-- Offset of a device's host clock from the controller's clock. There is one row when a controller first hears of the
-- device, and one for each change of more than 5 ms. A row is valid until the device's next row. The measured offset is
-- too low by the delay of the quickest recent message.
--
-- event_time: When the offset was measured, by the controller's clock, UTC, to the microsecond.
-- action: `heard`: a controller heard of the device for the first time. `set`: one of the two wall clocks was set.
--     `moved`: the clocks drifted apart, or a quicker message corrected the offset; at most once a minute.
-- offset_ns: Wall clock of the device's host minus the controller's wall clock, nanoseconds.
-- device_time_offset_ns: The clock of the device's agent minus the controller's wall clock, nanoseconds. The agent's
--     clock gives all times of the device's slices and leases, of its engines and their syncs, and of when it joined
--     and left. It is set when the host boots, never before the newest time recorded for the device, and then runs on,
--     even if the host's wall clock is set.
CREATE OR REPLACE VIEW clock AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    host, action, offset_ns, device_time_offset_ns
FROM event
WHERE kind = 'clock' AND reckonable('clock');
