-- If slices overlap, the slice of the writer that came to the ledger first counts, and within one writer the slice that
-- begins first, as in the view faulty_event. This reads all slices together: a later slice may replace another.
INSERT INTO doubled
WITH placed AS (
    SELECT unit, t0_ns, t1_ns, writer, seq, place
    FROM new_slice
    SEMI JOIN overlapped USING (unit)
    JOIN writer_order USING (writer)
),
-- Up to when the slices reach that begin until a time, by writers before the one at `place`.
reach AS (
    SELECT
        s.unit, later.place, s.t0_ns, max(s.t1_ns) OVER (PARTITION BY s.unit, later.place ORDER BY s.t0_ns) AS to_ns
    FROM placed AS s
    JOIN (SELECT DISTINCT unit, place FROM placed) AS later ON s.unit = later.unit AND s.place < later.place
)
SELECT s.unit, s.t0_ns, s.t1_ns, s.writer, s.seq
FROM placed AS s
ASOF JOIN reach AS r ON s.unit = r.unit AND s.place = r.place AND s.t1_ns > r.t0_ns
WHERE r.to_ns > s.t0_ns
UNION
SELECT unit, t0_ns, t1_ns, writer, seq
FROM placed
QUALIFY t0_ns < max(t1_ns) OVER (
    PARTITION BY unit, writer ORDER BY t0_ns, t1_ns, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
);
DELETE FROM new_slice USING doubled AS d WHERE new_slice.writer = d.writer AND new_slice.seq = d.seq;
CREATE OR REPLACE TEMP TABLE new_edge AS FROM slice_edge;
