-- The runs of a ledger, oldest first.
SELECT run_id, name, provenance, status, started_at, ended_at, trace, reason
FROM run
ORDER BY started_at, run_id;
