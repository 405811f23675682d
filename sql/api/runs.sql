-- The runs of a provenance, the newest first, each with its team, the model that its rollouts are of, and the one that
-- its fleet serves; NULL where nothing says so. Read from the ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live';
SELECT
    run_id, name, status, reason, fleet_run_id,
    CASE WHEN json_valid(tags_json) THEN nullif(tags_json ->> '$.team', '') END AS team,
    CASE WHEN json_valid(config_json)
         THEN nullif(coalesce(config_json ->> '$.model', config_json ->> '$.rollout.model'), '') END AS model,
    CASE WHEN json_valid(config_json) THEN nullif(config_json ->> '$.serving.model', '') END AS serving_model,
    1000 * epoch_us(started_at) AS started_ns,
    1000 * epoch_us(ended_at) AS ended_ns
FROM run
WHERE provenance = getvariable('provenance')
ORDER BY started_at DESC, run_id;
