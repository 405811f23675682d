-- The value of every tag of every run. Read from the ledger's catalog.
SELECT run_id, tag.key, json_extract_string(tags_json, '$."' || tag.key || '"') AS value
FROM run, unnest(json_keys(tags_json)) AS tag (key)
WHERE json_valid(tags_json) AND json_type(tags_json) = 'OBJECT'
ORDER BY run_id, tag.key;
