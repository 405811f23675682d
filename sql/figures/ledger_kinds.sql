-- Events of a ledger by kind and provenance, with the time they span (UTC).
SELECT kind, provenance, count(*) AS events, min(event.at) AS first_at, max(event.at) AS last_at
FROM event
GROUP BY kind, provenance
ORDER BY kind, provenance;
