-- Every run with how it stands, the one that began last first. Read from `ledger.duckdb`.
SELECT
    run_id, arg_max(status, started_at) AS status,
    strftime(max(ended_at), '%Y-%m-%dT%H:%M:%S.%fZ') AS ended_at
FROM run
GROUP BY run_id
ORDER BY max(started_at) DESC, run_id;
