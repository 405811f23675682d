-- Slices and power readings that no other view and no cost counts: their time is accounted for already, or the device
-- was not there. If slices of a device overlap, the slice of the writer that came to the ledger first counts, and
-- within one writer the slice that begins first; power readings likewise.
--
-- t0_ns: Start of the slice or reading, UTC nanoseconds since the Unix epoch.
-- fault: What is wrong.
CREATE OR REPLACE VIEW uncounted_time AS
WITH timed AS (
    SELECT writer, seq, run_id, provenance, kind, device_id, t0_ns, t1_ns
    FROM event
    WHERE (kind = 'device_slice' AND reckonable('device_slice')
           OR kind = 'power' AND reckonable('power') AND power_mw IS NOT NULL)
      AND t1_ns > t0_ns
),
-- A device without a tenure may have joined all the same: the event may come later, or was archived.
placed AS (
    SELECT
        s.*, kind = 'power' OR coalesce(t0_ns >= joined_ns AND t1_ns <= coalesce(left_ns, t1_ns), true) AS inside,
        max(t1_ns) OVER (
            PARTITION BY s.run_id, s.provenance, s.device_id, inside, kind, s.writer ORDER BY t0_ns, t1_ns, s.seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to_ns
    FROM timed AS s
    ASOF LEFT JOIN tenure AS t
        ON s.run_id = t.run_id AND s.provenance = t.provenance AND s.device_id = t.device_id AND t0_ns >= t.since_ns
),
shared AS (
    SELECT placed.*, place
    FROM placed
    LEFT JOIN writer_order USING (writer)
    SEMI JOIN (
        SELECT run_id, provenance, device_id, kind FROM placed GROUP BY ALL HAVING min(writer) < max(writer)
    ) USING (run_id, provenance, device_id, kind)
    WHERE inside
),
-- Up to when the intervals reach that begin until a time, by writers before the one at `place`.
reach AS (
    SELECT
        run_id, provenance, device_id, kind, later.place, t0_ns,
        max(t1_ns) OVER (PARTITION BY run_id, provenance, device_id, kind, later.place ORDER BY t0_ns) AS to_ns
    FROM shared
    JOIN (SELECT DISTINCT run_id, provenance, device_id, kind, place FROM shared) AS later
        USING (run_id, provenance, device_id, kind)
    WHERE shared.place < later.place
),
faulty AS (
    FROM placed WHERE NOT inside OR t0_ns < covered_to_ns
    UNION ALL
    SELECT s.* EXCLUDE (place) REPLACE (r.to_ns AS covered_to_ns)
    FROM shared AS s
    ASOF JOIN reach AS r
        ON s.run_id = r.run_id AND s.provenance = r.provenance AND s.device_id = r.device_id AND s.kind = r.kind
        AND s.place = r.place AND s.t1_ns > r.t0_ns
    WHERE s.t0_ns < r.to_ns AND coalesce(s.t0_ns >= covered_to_ns, true)
)
SELECT
    writer, seq, run_id, provenance, kind, device_id, t0_ns,
    CASE WHEN inside
         THEN 't0_ns must be at or after the end of the time that is accounted for already, ' || covered_to_ns
         ELSE 't0_ns and t1_ns must lie in a time in which the device was there' END AS fault
FROM faulty;
