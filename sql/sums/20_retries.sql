-- Events of `added` that a client sent again: of one id all but the first by time, and all if the id was folded in
-- before. `overtaken` has those that come before what was folded in, which must then be undone.
CREATE OR REPLACE TEMP TABLE named AS
SELECT
    writer, seq, run_id, kind, event_id, at_us,
    row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY at_us, writer, seq) AS n
FROM added
WHERE event_id IS NOT NULL;
CREATE OR REPLACE TEMP TABLE retry AS
SELECT named.writer, named.seq
FROM named
LEFT JOIN client_id AS known USING (run_id, kind, event_id)
WHERE named.n > 1 OR known.event_id IS NOT NULL;
CREATE OR REPLACE TEMP TABLE overtaken AS
SELECT named.event_id
FROM named
JOIN client_id AS known USING (run_id, kind, event_id)
WHERE (named.at_us, named.writer, named.seq) < (known.at_us, known.writer, known.seq);
INSERT INTO client_id
SELECT run_id, kind, event_id, at_us, writer, seq
FROM named
ANTI JOIN client_id USING (run_id, kind, event_id)
WHERE n = 1;
