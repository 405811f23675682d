-- Runs of one provenance that have not ended and began before an instant. Read from the ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE to_ns = 1793491200000000000;
SELECT run_id, 1000 * epoch_us(started_at) AS started_ns
FROM run
WHERE status = 'running'
  AND provenance = getvariable('provenance')
  AND 1000 * epoch_us(started_at) < getvariable('to_ns')
ORDER BY run_id;
