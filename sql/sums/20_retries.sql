-- Events of `added` that a client sent again: of one id all but the first, and all if the id was folded in
-- before. `overtaken` has those that come before what was folded in, which must then be undone.
CREATE OR REPLACE TEMP TABLE named AS
SELECT
    writer, seq, run_id, kind, event_id, coalesce(place, 9223372036854775807) AS place,
    row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY place, writer, seq) AS n
FROM added
LEFT JOIN writer_order USING (writer)
WHERE event_id IS NOT NULL;
-- What is known of these ids. As in rollups/unrolled_retry.sql, few row groups of the table are read.
CREATE OR REPLACE TEMP TABLE known AS
WITH running AS MATERIALIZED (SELECT DISTINCT run_id FROM named)
FROM client_id
SEMI JOIN running USING (run_id)
SEMI JOIN (FROM named WHERE kind = 'turn') AS new USING (run_id, kind, event_id)
WHERE kind = 'turn'
UNION ALL
FROM client_id
SEMI JOIN running USING (run_id)
SEMI JOIN (FROM named WHERE kind != 'turn') AS new USING (run_id, kind, event_id)
WHERE kind != 'turn';
CREATE OR REPLACE TEMP TABLE retry AS
SELECT named.writer, named.seq
FROM named
LEFT JOIN known USING (run_id, kind, event_id)
WHERE named.n > 1 OR known.event_id IS NOT NULL;
CREATE OR REPLACE TEMP TABLE overtaken AS
SELECT named.event_id
FROM named
JOIN known USING (run_id, kind, event_id)
LEFT JOIN writer_order AS counted ON known.writer = counted.writer
WHERE (named.place, named.writer, named.seq) < (coalesce(counted.place, 9223372036854775807), known.writer, known.seq);
INSERT INTO client_id
SELECT run_id, kind, event_id, writer, seq
FROM named
ANTI JOIN known USING (run_id, kind, event_id)
WHERE n = 1
ORDER BY kind, run_id, event_id;
