-- The teams that runs name, of any provenance. Read from the ledger's catalog.
SELECT DISTINCT unnest([tags_json ->> '$.team', tags_json ->> '$.serving_team']) AS team
FROM run
WHERE json_valid(tags_json) AND json_type(tags_json) = 'OBJECT';
