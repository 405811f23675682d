-- Rows that the other views leave out, and events that contradict others. The views leave out a row that no sum can
-- use: a number is out of range, a rule is broken, or a value that its kind needs is missing. Contradictions are an
-- `event_id` that comes again with other content (all views show only the first event), and time that is already
-- accounted for or in which the device was not there. Programs that write with `rose` write no such rows; other
-- programs may. The row itself is in `internal.stored_event`.
--
-- event_time: When it happened, UTC, to the microsecond; NULL if `at_us` is no valid time.
-- at_us: When it happened, as recorded: UTC microseconds since the Unix epoch, or no valid time.
-- fault: What is wrong.
-- value: Text of the field that `fault` names first; NULL if it names none.
CREATE OR REPLACE VIEW faulty_event AS
WITH broken AS (
    SELECT
        *,
        CASE
        WHEN NOT coalesce(at_us BETWEEN 0 AND 4611686018427387, false)
        THEN 'at_us must be an integer from 0 to 4611686018427387, UTC microseconds from 1970 to 2116'
        WHEN NOT coalesce(reckonable(kind), false)
        THEN 'a number is out of range, a rule is broken, or a value that the kind needs is missing' END AS fault
    FROM stored_event
),
-- The time a retry was made at is not its content.
later AS (
    SELECT *, hash(*COLUMNS(* EXCLUDE (writer, seq, at_us, first_writer, first_seq))) AS content
    FROM (
        SELECT stored.*, retry.first_writer, retry.first_seq
        FROM stored_event AS stored
        JOIN retry ON stored.writer = retry.writer AND stored.seq = retry.seq
    )
),
first AS (
    SELECT writer AS first_writer, seq AS first_seq, hash(*COLUMNS(* EXCLUDE (writer, seq, at_us))) AS first_content
    FROM (FROM stored_event AS stored SEMI JOIN retry ON stored.writer = first_writer AND stored.seq = first_seq)
)
SELECT
    writer, seq, event_id, run_id, provenance,
    CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS event_time, at_us, kind,
    device_id, engine_id, lease_id, trajectory_id, policy_version, fault, value
FROM (
    SELECT *, json_extract_string(to_json(broken), '$.' || split_part(fault, ' ', 1)) AS value
    FROM broken
    WHERE fault IS NOT NULL
    UNION ALL BY NAME
    SELECT
        * EXCLUDE (first_writer, first_seq, content, first_content),
        'event_id must be that of one event, and ' || first_writer || '/' || first_seq || ', which counts, ' ||
        if(first_content IS NULL, 'was archived: restore it to compare them', 'has other content') AS fault,
        event_id AS value
    FROM later
    LEFT JOIN first USING (first_writer, first_seq)
    WHERE content IS DISTINCT FROM first_content
    UNION ALL BY NAME
    SELECT event.*, fault, uncounted_time.t0_ns::VARCHAR AS value
    FROM event
    JOIN uncounted_time USING (writer, seq)
);
