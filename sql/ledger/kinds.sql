-- Events of a ledger by kind and provenance, with the time they span (UTC).
SELECT kind, provenance, count(*) AS events, min(event_time) AS first_at, max(event_time) AS last_at
FROM event
GROUP BY kind, provenance
ORDER BY kind, provenance;
