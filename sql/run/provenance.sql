-- Every provenance among a run's events, with how many carry it: more than one means that no figure may be given.
-- By hand: SET VARIABLE run_id = '...';
SELECT provenance, count(*) AS events
FROM event
WHERE run_id = getvariable('run_id')
GROUP BY provenance
ORDER BY provenance;
