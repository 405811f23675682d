-- Devices that decisions of the run let go, of those that some run of the ledger had, and the classes they were of
-- then.
-- By hand: SET VARIABLE run_id = '...';
SELECT DISTINCT t.device_id, t.device_class
FROM scale_down AS s
JOIN ledger.tenure AS t ON t.device_id = s.device_id AND t.provenance = s.provenance
WHERE s.run_id = getvariable('run_id') AND s.decision = 'let_go';
