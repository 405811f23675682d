-- Names of all runs of a ledger. Read from `ledger.duckdb`.
SELECT run_id, name
FROM ledger.run
ORDER BY run_id;
