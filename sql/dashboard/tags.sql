-- Every run with its tags, a flat JSON object. Read from the ledger's catalog.
SELECT run_id, tags_json
FROM run
WHERE json_valid(tags_json) AND json_type(tags_json) = 'OBJECT'
ORDER BY run_id;
