-- Provenances of the runs that had a device in [from_ns, to_ns). A device that never left was there until the last
-- event of its run: a run that died does not continue for ever. Read from the ledger's catalog.
-- By hand: SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH newest AS (
    SELECT run_id, provenance, 1000 * max(newest_at_us) AS last_ns FROM daily_event GROUP BY run_id, provenance
)
SELECT DISTINCT provenance
FROM tenure
JOIN newest USING (run_id, provenance)
WHERE joined_ns < getvariable('to_ns')
  AND coalesce(left_ns - 1, last_ns) >= greatest(joined_ns, getvariable('from_ns'))
ORDER BY provenance;
