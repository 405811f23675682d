-- Events of `added` that a client sent again: of one id all but the first by time, and all if the id was folded in
-- before. `overtaken` has those that come before what was folded in, which must then be undone.
CREATE OR REPLACE TEMP TABLE named AS
SELECT
    writer, seq, run_id, kind, event_id, at_us,
    row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY at_us, writer, seq) AS n
FROM added
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
WHERE (named.at_us, named.writer, named.seq) < (known.at_us, known.writer, known.seq);
INSERT INTO client_id
SELECT run_id, kind, event_id, at_us, writer, seq
FROM named
ANTI JOIN known USING (run_id, kind, event_id)
WHERE n = 1
ORDER BY kind, run_id, event_id;
