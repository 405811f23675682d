-- Price books that runs name in their fleet files: of the run `run_id`, or of all runs that overlap [from_ns, to_ns).
-- A variable that is NULL limits nothing.
SELECT run_id, json_extract_string(config_json, '$.price_book') AS price_book
FROM run
WHERE json_extract_string(config_json, '$.price_book') IS NOT NULL
    AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    AND (getvariable('to_ns') IS NULL OR started_at IS NULL OR epoch_ns(started_at) < getvariable('to_ns'))
    AND (getvariable('from_ns') IS NULL OR ended_at IS NULL OR epoch_ns(ended_at) > getvariable('from_ns'))
ORDER BY started_at, run_id;
