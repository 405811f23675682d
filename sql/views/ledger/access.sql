-- Reads of this ledger, and refusals. Each query of a gateway's client and each refusal has a row. If `ROSE_LOG_ACCESS`
-- asks for it, each verification, export and report of a `rose` command has one, too. Anyone who may open the Parquet
-- files can read them without leaving a row here.
--
-- writer: `gateway` for what came over the network, `access` for commands on the folder. A row with another name comes
--     from neither.
-- who: Name of the token, or `user@host` for a command on the folder; `(no token)` if the gateway needs none; `(unknown
--     token)` if no token that it knows was sent.
-- peer: Address of the caller; NULL for a command on the folder.
-- action: `query`, `info` (the list of views, or how far writers are), `export`, `verify`, `report`, `receipt`; for a
--     refusal, the right that was missing: `token_denied`, `read_denied`, `append_denied`, `admin_denied`.
-- statement: What was asked for, its first 1,000 characters: the SQL, the writer to append as, the views of an export.
-- statement_sha256: SHA-256 of the whole statement in UTF-8, in hexadecimal.
-- result_rows: Rows that the reader was given.
-- outcome: `ok`, `refused`, `failed` or `timeout`.
-- count: How often it happened within a second, if more than once: refusals of one peer, or `info` calls of one peer.
CREATE OR REPLACE VIEW access AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    who, peer, action, statement, statement_sha256, result_rows, duration_ns, outcome, coalesce(count, 1) AS count
FROM event
WHERE kind = 'access' AND reckonable('access');
