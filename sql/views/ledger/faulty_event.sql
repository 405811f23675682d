-- Rows that the other views leave out, and events that contradict others. The views leave out a row with a number out
-- of range, a broken rule, or without a value that its kind needs, because no sum can use it. Contradictions are an
-- `event_id` that comes again with other content, of which all views show only the first, and a slice of time that is
-- accounted for already, which no cost counts. A program that writes with `rose` writes none; those of other programs
-- may hold some. The row itself is in `stored_event`.
--
-- event_time: When it happened, UTC, to the microsecond; NULL where `at_us` is no time.
-- at_us: When it happened as it stands there, UTC microseconds since the Unix epoch; it may be no time at all.
-- fault: What is wrong.
-- value: What stands in the field that `fault` names first, as text; NULL where it names none.
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
),
-- If slices overlap, the slice of the writer that came to the ledger first counts, and within one writer the slice that
-- begins first.
slice AS (
    SELECT
        *, epoch_us(event_time) AS at_us, 'device_slice' AS kind,
        max(t1_ns) OVER (
            PARTITION BY run_id, provenance, device_id, writer ORDER BY t0_ns, t1_ns, seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to_ns
    FROM device_slice
    LEFT JOIN writer_order USING (writer)
    WHERE t1_ns > t0_ns
),
-- Up to when the slices reach that begin until a time, by writers before the one at `place`.
reach AS (
    SELECT
        run_id, provenance, device_id, later.place, t0_ns AS from_ns,
        max(t1_ns) OVER (PARTITION BY run_id, provenance, device_id, later.place ORDER BY t0_ns) AS to_ns
    FROM slice
    JOIN (SELECT DISTINCT run_id, provenance, device_id, place FROM slice) AS later
        USING (run_id, provenance, device_id)
    WHERE slice.place < later.place
),
doubled AS (
    SELECT * EXCLUDE (place) FROM slice WHERE t0_ns < covered_to_ns
    UNION ALL
    SELECT slice.* EXCLUDE (place) REPLACE (reach.to_ns AS covered_to_ns)
    FROM slice
    ASOF JOIN reach
        ON slice.run_id = reach.run_id AND slice.provenance = reach.provenance
        AND slice.device_id = reach.device_id AND slice.place = reach.place AND slice.t1_ns > reach.from_ns
    WHERE slice.t0_ns < reach.to_ns AND coalesce(slice.t0_ns >= covered_to_ns, true)
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
    SELECT
        * EXCLUDE (t0_ns, event_time),
        't0_ns must be at or after the end of the time that is accounted for already, ' || covered_to_ns AS fault,
        t0_ns::VARCHAR AS value
    FROM doubled
);
