-- Events of `added` that a client sent again: of one id, all but the first, and all if the id was folded in before.
CREATE OR REPLACE TEMP TABLE retry AS
WITH numbered AS (
    SELECT
        writer, seq, run_id, kind, event_id,
        row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY at_us, writer, seq) AS n
    FROM added
    WHERE event_id IS NOT NULL
)
SELECT numbered.writer, numbered.seq
FROM numbered
LEFT JOIN client_id USING (run_id, kind, event_id)
WHERE numbered.n > 1 OR client_id.event_id IS NOT NULL;
INSERT INTO client_id
SELECT DISTINCT run_id, kind, event_id
FROM added
WHERE event_id IS NOT NULL
EXCEPT
FROM client_id;
