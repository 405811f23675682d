-- The tags of every run of a provenance that has some, a flat JSON object each. Read from the ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live';
SELECT run_id, tags_json
FROM run
WHERE provenance = getvariable('provenance') AND json_valid(tags_json) AND json_type(tags_json) = 'OBJECT'
ORDER BY run_id;
