-- Reads of this ledger and refusals: one row for each query of a gateway's client and each refusal, and for each
-- verification, export and report of a `rose` command where `ROSE_LOG_ACCESS` asks for them. The Parquet files can be
-- read without leaving a row here by anyone who may open them.
--
-- writer: `gateway` for what came over the network, `access` for commands on the folder; a row under any other name was
--     written by neither.
-- who: Name of the token, or `user@host` for a command on the folder; `(no token)` where the gateway asks for none,
--     `(unknown token)` where none that it knows was sent.
-- peer: Address that the call came from; NULL for a command on the folder.
-- action: `query`, `info` (the list of views, or how far writers are), `export`, `verify`, `report`, `receipt`; or what
--     was refused for want of it: `token_denied`, `read_denied`, `append_denied`, `admin_denied`.
-- statement: What was asked for, its first 1,000 characters: the SQL, the writer to append as, the views of an export.
-- statement_sha256: SHA-256 of the whole of it in UTF-8, in hexadecimal.
-- result_rows: Rows that were given.
-- outcome: `ok`, `refused`, `failed` or `timeout`.
-- count: How often it happened where that is more than once: refusals of one peer, or its `info`, within a second.
CREATE OR REPLACE VIEW access AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    who, peer, action, statement, statement_sha256, result_rows, duration_ns, outcome, coalesce(count, 1) AS count
FROM event
WHERE kind = 'access' AND reckonable('access');
