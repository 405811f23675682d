-- What every run of a ledger is called, and its team; NULL where its tags name none. Read from `ledger.duckdb`.
SELECT run_id, name, CASE WHEN json_valid(tags_json) THEN nullif(tags_json ->> '$.team', '') END AS team
FROM ledger.run
ORDER BY run_id;
