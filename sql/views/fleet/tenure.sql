-- One row for each stretch of time [joined_ns, left_ns) in which a device of a run was there in one pool and class, on
-- one hardware. A device that joins again without leaving continues its row, unless its pool, class or hardware
-- differs: then it gets a new row. A device that left and never joined has none.
--
-- hardware_id: Id of the hardware, the same in every run. If an event has none, the id of the device's event before
--     counts, or else that of the next one; NULL if no event has one.
-- joined_ns: Start of the stretch, UTC nanoseconds since the Unix epoch.
-- since_ns: `joined_ns`, or 0 for a device's first row, to which all earlier time belongs, too; nanoseconds.
-- left_ns: End of the stretch, UTC nanoseconds since the Unix epoch; NULL while the device is there.
CREATE OR REPLACE VIEW tenure AS
WITH recorded AS (
    SELECT *
    FROM event
    WHERE kind = 'device' AND reckonable('device')
    -- A device that leaves and leaves again was there until the second time.
    QUALIFY NOT (
        action = 'left' AND lead(action, 1, 'joined') OVER (
            PARTITION BY run_id, provenance, device_id ORDER BY t_ns, at_us, writer, seq
        ) = 'left'
    )
),
hardware AS (
    SELECT
        * EXCLUDE (hardware_id),
        coalesce(
            last_value(hardware_id IGNORE NULLS) OVER (
                PARTITION BY run_id, provenance, device_id ORDER BY t_ns, at_us, writer, seq
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ),
            first_value(hardware_id IGNORE NULLS) OVER (
                PARTITION BY run_id, provenance, device_id ORDER BY t_ns, at_us, writer, seq
                ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
            )
        ) AS hardware_id
    FROM recorded
),
change AS (
    SELECT
        *,
        lag(CASE WHEN action = 'joined' THEN (pool, device_class, hardware_id) END) OVER tenures AS before,
        lead(t_ns) OVER tenures AS until_ns
    FROM hardware
    WINDOW tenures AS (PARTITION BY run_id, provenance, device_id ORDER BY t_ns, at_us, writer, seq)
),
numbered AS (
    SELECT
        *,
        count(*) FILTER (before IS DISTINCT FROM (pool, device_class, hardware_id)) OVER (
            PARTITION BY run_id, provenance, device_id ORDER BY t_ns, at_us, writer, seq
        ) AS tenure
    FROM change
    WHERE action = 'joined'
)
SELECT
    arg_min(writer, t_ns) AS writer, arg_min(seq, t_ns) AS seq, arg_min(event_id, t_ns) AS event_id,
    run_id, provenance, min(event_time) AS event_time,
    device_id, pool, device_class, hardware_id,
    min(t_ns) AS joined_ns,
    CASE WHEN tenure = 1 THEN 0 ELSE min(t_ns) END AS since_ns,
    CASE WHEN count(until_ns) = count(*) THEN max(until_ns) END AS left_ns
FROM numbered
GROUP BY run_id, provenance, device_id, tenure, pool, device_class, hardware_id;
