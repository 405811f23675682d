-- For the analyst: which events did a writer have to drop because its queue was full, when, and how much did they
-- amount to?
--
-- since (TIMESTAMP): only drops recorded at or after this time, UTC.
-- until (TIMESTAMP): only drops recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
--
-- Sums over turns, trajectories, verdicts and requests are too low by what is listed here; `amounts_json` has the sums
-- of the dropped tokens, bytes and nanoseconds. Slices are never dropped but merged. Events of leases, preemptions,
-- syncs, engines and devices wait until there is room. No rows is the good case.
WITH dropped AS (
    SELECT
        event_time, provenance, run_id, writer, seq, detail_json::JSON AS detail,
        unnest(json_keys(detail_json, '$.kinds')) AS dropped_kind
    FROM event
    WHERE kind = 'ledger' AND action = 'dropped'
      AND (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
        AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
        AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
)
SELECT
    dropped.event_time, provenance, run_id, writer, dropped_kind,
    ((detail -> '$.kinds' -> dropped_kind) ->> '$.count')::BIGINT AS events,
    (detail -> '$.kinds' -> dropped_kind)::VARCHAR AS amounts_json
FROM dropped
ORDER BY dropped.event_time, writer, seq, dropped_kind;
