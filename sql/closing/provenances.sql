-- Provenances of the runs that lie, with a part at least, in [from_ns, to_ns). Read from the ledger's catalog.
-- By hand: SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT DISTINCT provenance
FROM run
WHERE 1000 * epoch_us(started_at) < getvariable('to_ns')
  AND (ended_at IS NULL OR 1000 * epoch_us(ended_at) > getvariable('from_ns'))
ORDER BY provenance;
