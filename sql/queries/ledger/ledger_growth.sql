-- For the infra lead: how fast does the ledger grow, by day and kind of event?
--
-- since (TIMESTAMP): only events at or after this time, UTC.
-- until (TIMESTAMP): only events before this time, UTC.
-- run_id (VARCHAR): only this run.
--
-- Events count as in the views: an event that was retried counts once. An event may stand for many others: one of kind
-- `preemption` has all yields of a second. `writers` is the number of processes that wrote such an event on that day
-- (UTC).
SELECT
    event_time::DATE AS day, provenance, kind,
    count(*) AS events,
    count(DISTINCT writer) AS writers,
    count(DISTINCT run_id) AS runs
FROM event
WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
GROUP BY ALL
ORDER BY day, provenance, kind;
