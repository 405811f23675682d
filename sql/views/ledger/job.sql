-- One row for each finished run of a background job of the ledger. A run that was skipped has none.
--
-- job: Name of the job, such as `compact`.
-- ok: Whether the run succeeded.
-- started_at: When the run began, UTC.
-- duration_ns: How long the run took, nanoseconds.
-- missed: Intervals without a run before this one, which makes up for them.
-- result_json: What the run did, as JSON; NULL if it failed.
-- error: Why the run failed, in words; NULL if it did not.
CREATE OR REPLACE VIEW job AS
WITH said AS (
    SELECT *, try_cast(detail_json AS JSON) AS detail
    FROM event
    WHERE kind = 'ledger' AND reckonable('ledger') AND action = 'job'
)
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    detail ->> '$.job' AS job,
    try_cast(detail ->> '$.ok' AS BOOLEAN) AS ok,
    CASE WHEN try_cast(detail ->> '$.started_us' AS BIGINT) BETWEEN 0 AND 4611686018427387
         THEN make_timestamp(try_cast(detail ->> '$.started_us' AS BIGINT)) END AS started_at,
    try_cast(detail ->> '$.duration_ns' AS BIGINT) AS duration_ns,
    try_cast(detail ->> '$.missed' AS BIGINT) AS missed,
    detail ->> '$.result' AS result_json,
    detail ->> '$.error' AS error
FROM said;
