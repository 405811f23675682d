-- What every run of a ledger is called. Read from `ledger.duckdb`.
SELECT run_id, name
FROM ledger.run
ORDER BY run_id;
