-- Events that were not kept one by one because a writer's queue was full, by the writer that says so.
SELECT writer, provenance, sum(coalesce(try_cast(try_cast(detail_json AS JSON) ->> '$.count' AS BIGINT), 0)) AS dropped
FROM internal.stored_event
WHERE kind = 'ledger' AND action = 'dropped'
GROUP BY ALL
ORDER BY ALL;
