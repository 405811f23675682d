-- One row for each device of a run, in its last state. `tenure` has the times in which the device was there.
--
-- joined_ns: When the device first joined, UTC nanoseconds since the Unix epoch.
-- left_ns: When the device left for the last time, UTC nanoseconds since the Unix epoch; NULL while it is there.
CREATE OR REPLACE VIEW device AS
WITH change AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, provenance, device_id ORDER BY at_us, writer, seq) AS n
    FROM event
    WHERE kind = 'device' AND reckonable('device')
)
SELECT
    arg_min(writer, n) AS writer, arg_min(seq, n) AS seq, arg_min(event_id, n) AS event_id,
    run_id, provenance, min(event_time) AS event_time,
    device_id,
    arg_max(pool, n) AS pool,
    arg_max(device_class, n) AS device_class,
    arg_max(memory_bytes, n) AS memory_bytes,
    arg_max(hardware_id, n) AS hardware_id,
    min(t_ns) FILTER (action = 'joined') AS joined_ns,
    CASE WHEN arg_max(action, n) = 'left' THEN max(t_ns) FILTER (action = 'left') END AS left_ns
FROM change
GROUP BY run_id, provenance, device_id;
