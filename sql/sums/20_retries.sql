-- Which events of `added` count: of one id the record that the roll-ups count; if they count none, the first one by
-- place, writer and seq, of those that were folded in before too. `retry` has the events of `added` that do not count.
-- `overtaken` has the ids of which another record was folded in: that must be undone.
CREATE OR REPLACE TEMP TABLE named AS
SELECT writer, seq, run_id, kind, event_id FROM added WHERE event_id IS NOT NULL;
-- Known records of these ids. As in rollups/unrolled_retry.sql, few row groups of the table and the files are read.
CREATE OR REPLACE TEMP TABLE known AS
WITH running AS MATERIALIZED (SELECT DISTINCT run_id FROM named)
SELECT 'folded' AS source, *
FROM client_id
SEMI JOIN running USING (run_id)
SEMI JOIN (FROM named WHERE kind = 'turn') AS new USING (run_id, kind, event_id)
WHERE kind = 'turn'
UNION ALL
SELECT 'folded' AS source, *
FROM client_id
SEMI JOIN running USING (run_id)
SEMI JOIN (FROM named WHERE kind != 'turn') AS new USING (run_id, kind, event_id)
WHERE kind != 'turn'
UNION ALL BY NAME
SELECT 'rolled' AS source, *
FROM rolled_client_id
SEMI JOIN running USING (run_id)
SEMI JOIN (FROM named WHERE kind = 'turn') AS new USING (run_id, kind, event_id)
WHERE kind = 'turn'
UNION ALL BY NAME
SELECT 'rolled' AS source, *
FROM rolled_client_id
SEMI JOIN running USING (run_id)
SEMI JOIN (FROM named WHERE kind != 'turn') AS new USING (run_id, kind, event_id)
WHERE kind != 'turn';
CREATE OR REPLACE TEMP TABLE candidate AS
SELECT
    source, run_id, kind, event_id, writer, seq,
    writer = first_value(writer) OVER same_id AND seq = first_value(seq) OVER same_id AS counts
FROM (FROM known UNION ALL BY NAME SELECT 'added' AS source, * FROM named)
LEFT JOIN writer_order USING (writer)
WINDOW same_id AS (PARTITION BY run_id, kind, event_id ORDER BY source = 'rolled' DESC, place, writer, seq);
CREATE OR REPLACE TEMP TABLE retry AS SELECT writer, seq FROM candidate WHERE source = 'added' AND NOT counts;
-- A roll-up that came in between may count another record than the one that was first then.
CREATE OR REPLACE TEMP TABLE overtaken AS
SELECT event_id FROM candidate WHERE source = 'folded' AND NOT counts
UNION ALL
SELECT event_id
FROM client_id AS folded
JOIN new_rolled_client_id AS rolled USING (run_id, kind, event_id)
WHERE folded.writer <> rolled.writer OR folded.seq <> rolled.seq;
INSERT INTO client_id
SELECT run_id, kind, event_id, writer, seq
FROM candidate
WHERE source = 'added' AND counts
ORDER BY kind, run_id, event_id;
